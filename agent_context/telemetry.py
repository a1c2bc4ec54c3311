"""Traces and metrics by OpenTelemetry's conventions for generative AI (extra `otel`).

Names of open-telemetry/semantic-conventions-genai v0.1.0 (2026-11), which are still in development:
all of them stand here. Content goes out only if that is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from agent_context import events
from agent_context._trace_headers import send_with
from agent_context._validation import missing_extra
from agent_context.agent.middleware import Middleware
from agent_context.agent.run_request import RunRequest
from agent_context.errors import BackendError
from agent_context.events import ChangeEvent
from agent_context.host import Host
from agent_context.messages import Completion, Message, Role
from agent_context.model_call import ModelCall
from agent_context.providers.response import AgentResponse
from agent_context.tools.tool import ToolContext

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode
except ModuleNotFoundError as error:
    raise missing_extra("agent_context.telemetry", "opentelemetry-api", "otel") from error

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

__all__ = ["Telemetry"]

_SCOPE: Final = "agent_context"
_PROVIDERS: Final = {"zhipu": "z_ai", "kimi": "moonshot_ai", "compatible": "openai_compatible"}
"""Vendors whose name is another one there, or isn't fixed yet."""


class Telemetry(Middleware):
    """Middleware that traces runs, model calls and tool calls, and counts them.

    `Agent(middleware=[Telemetry()])`; for a plain turn `Send(…, around=telemetry.around_model)`;
    `telemetry.watch(host)` for what happens to conversations. One span a run, a model call and a
    tool call, none a chunk. A model call carries the caller's trace on, and so does a tool.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        content: bool = False,
    ) -> None:
        """Use these providers, else the global ones; `content` puts what is said on the spans."""
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._content = content
        self._meter = meter
        self._inference = meter.create_histogram("gen_ai.client.inference.duration", unit="s")
        self._run = meter.create_histogram("gen_ai.invoke_agent.duration", unit="s")
        self._tool = meter.create_histogram("gen_ai.execute_tool.duration", unit="s")
        self._tokens = {
            name: meter.create_counter(f"gen_ai.client.inference.usage.{name}", unit="{token}")
            for name in _USAGE
        }
        self._compressions = meter.create_counter("agent_context.compressions")
        self._removed = meter.create_counter("agent_context.compression.removed_messages")
        self._fenced = meter.create_counter("agent_context.turns.lost")
        self._broken = meter.create_counter("agent_context.prompt_prefix.changes")

    async def around_run(
        self, run: RunRequest, proceed: Callable[[RunRequest], Awaitable[AgentResponse]]
    ) -> AgentResponse:
        """A span `invoke_agent` around a run."""
        session = run.session.session_id if run.session is not None else None
        start = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": run.agent,
            "gen_ai.conversation.id": session,
        }
        name = " ".join(filter(None, ("invoke_agent", run.agent)))
        with self._span(name, SpanKind.INTERNAL, start, self._run):
            return await proceed(run)

    async def around_model(
        self, call: ModelCall, proceed: Callable[[ModelCall], Awaitable[Completion]]
    ) -> Completion:
        """A span `chat` around a call of the model; its request carries the trace on."""
        start = _request_attributes(call)
        name = f"chat {call.options.model or call.vendor}"
        with self._span(name, SpanKind.CLIENT, start, self._inference) as span:
            if self._content:
                _set(span, _input_content(call))
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            with send_with(carrier):
                completion = await proceed(call)
            _set(span, _answer_attributes(completion))
            if self._content:
                _set(span, {"gen_ai.output.messages": _messages([completion.message])})
            self._count(completion, start)
            return completion

    async def around_tool(
        self, call: ToolContext, proceed: Callable[[ToolContext], Awaitable[object]]
    ) -> object:
        """A span `execute_tool` around a call of a tool."""
        name = call.call.name
        start = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call.call.id,
            "gen_ai.tool.type": "function",
            "gen_ai.conversation.id": call.conversation_id,
        }
        with self._span(f"execute_tool {name}", SpanKind.INTERNAL, start, self._tool) as span:
            if self._content:
                _set(span, {"gen_ai.tool.call.arguments": call.call.arguments})
            return await proceed(call)

    def watch(self, host: Host) -> str:
        """Count what happens to a host's conversations; the token ends it, by `unsubscribe`."""

        def live(_: CallbackOptions) -> Iterator[Observation]:
            yield metrics.Observation(len(host.active_ids()))

        self._meter.create_observable_gauge("agent_context.conversations.live", callbacks=[live])
        return host.subscribe(self._note)

    def _note(self, event: ChangeEvent) -> None:
        match event:
            case events.Compressed():
                self._compressions.add(1)
                self._removed.add(len(event.removed))
            case events.TurnLost():
                self._fenced.add(1)
            case events.PromptPrefixChanged():
                self._broken.add(1)
            case _:
                pass

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        duration: Any,  # noqa: ANN401
    ) -> Generator[Span]:
        known = {key: value for key, value in attributes.items() if value is not None}
        begun, failure = time.perf_counter(), {}
        with self._tracer.start_as_current_span(name, kind=kind, attributes=known) as span:
            try:
                yield span
            except BaseException as error:
                failure = {"error.type": _error_type(error)}
                _set(span, failure)
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise
            finally:
                said = {key: known[key] for key in known.keys() & _METRIC_ATTRIBUTES}
                duration.record(time.perf_counter() - begun, {**said, **failure})

    def _count(self, completion: Completion, start: Mapping[str, Any]) -> None:
        said = {key: start[key] for key in start.keys() & _METRIC_ATTRIBUTES if start[key]}
        for name, read in _USAGE.items():
            if count := getattr(completion.usage, read):
                self._tokens[name].add(count, said)


_USAGE: Final = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read.input_tokens": "cached_tokens",
    "cache_write.input_tokens": "cache_write_tokens",
    "reasoning.output_tokens": "reasoning_tokens",
}
"""The figures of a usage, by their names there."""

_METRIC_ATTRIBUTES: Final = frozenset(
    {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.tool.name"}
)


def _request_attributes(call: ModelCall) -> dict[str, Any]:
    options = call.options
    compacted = len(call.zones.compressed) > 0
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(call.vendor, call.vendor),
        "gen_ai.conversation.id": call.conversation_id,
        "gen_ai.conversation.compacted": True if compacted else None,
        "gen_ai.request.model": options.model,
        "gen_ai.request.max_tokens": options.max_tokens,
        "gen_ai.request.temperature": options.temperature,
        "gen_ai.request.top_p": options.top_p,
        "gen_ai.request.seed": options.seed,
        "gen_ai.request.stop_sequences": list(options.stop) or None,
        "gen_ai.request.reasoning.level": options.effort,
    }


def _answer_attributes(completion: Completion) -> dict[str, Any]:
    usage = {
        f"gen_ai.usage.{name}": getattr(completion.usage, read) for name, read in _USAGE.items()
    }
    return {
        "gen_ai.response.id": completion.request_id,
        "gen_ai.response.model": completion.model or None,
        "gen_ai.response.finish_reasons": [completion.finish_reason.value],
        **usage,
    }


def _input_content(call: ModelCall) -> dict[str, Any]:
    said = call.messages
    system = [message for message in said if message.role is Role.SYSTEM]
    others = [message for message in said if message.role is not Role.SYSTEM]
    tools = [tool.model_dump(exclude_none=True) for tool in call.options.tools]
    return {
        "gen_ai.system_instructions": _messages(system) if system else None,
        "gen_ai.input.messages": _messages(others),
        "gen_ai.tool.definitions": orjson.dumps(tools).decode() if tools else None,
    }


def _messages(said: Sequence[Message]) -> str:
    return orjson.dumps([message.to_dict() for message in said]).decode()


def _set(span: Span, attributes: Mapping[str, Any]) -> None:
    span.set_attributes({key: value for key, value in attributes.items() if value is not None})


def _error_type(error: BaseException) -> str:
    return error.kind.value if isinstance(error, BackendError) else type(error).__name__
