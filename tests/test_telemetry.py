"""Traces and metrics, taken in by OpenTelemetry's own SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_context import (
    AgentContext,
    BackendError,
    Completion,
    ErrorKind,
    Extend,
    Host,
    Message,
    Send,
    SendOptions,
    SlidingWindow,
    Usage,
    tool,
)
from agent_context.protocol import Compress
from agent_context.stores.memory import MemoryStore
from agent_context.telemetry import Telemetry
from agent_context_backends.anthropic import AnthropicBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.scripted import ScriptedBackend, ScriptItem
from benchmarks.turns import answer
from tests.agent.conftest import agent_of, calls
from tests.support.waiting import wait_until


@dataclass
class Seen:
    """What was traced and counted."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def telemetry(self, **options: Any) -> Telemetry:
        return Telemetry(tracer_provider=self.traces, meter_provider=self.meters, **options)

    def span(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return found

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def seen() -> Iterator[Seen]:
    made = Seen()
    yield made
    made.meters.shutdown()
    made.traces.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def ids(span: ReadableSpan) -> tuple[int, int]:
    """Of its trace, and its own."""
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


USAGE = Usage(input_tokens=100, output_tokens=7, cached_tokens=90, cache_write_tokens=5)


async def test_a_run_its_calls_of_the_model_and_its_tools_are_spans(seen: Seen) -> None:
    inside: list[int] = []

    @tool
    async def look() -> str:
        """Look."""
        inside.append(trace.get_current_span().get_span_context().span_id)
        return "blue"

    script: list[ScriptItem] = [
        calls("look"),
        Completion(message=Message.assistant("It is blue."), usage=USAGE),
    ]
    agent = agent_of(script, name="painter", tools=[look], middleware=[seen.telemetry()])
    tracer = seen.traces.get_tracer("program")
    with tracer.start_as_current_span("request") as request:
        await agent.run("Colour?", session=agent.create_session("s"), options={"model": "m"})

    run, executed = seen.span("invoke_agent painter"), seen.span("execute_tool look")
    chats = [span for span in seen.exporter.get_finished_spans() if span.name == "chat m"]
    assert parent(run) == request.get_span_context().span_id
    assert {parent(span) for span in (*chats, executed)} == {ids(run)[1]}
    assert inside == [ids(executed)[1]]
    assert attributes(run)["gen_ai.conversation.id"] == "s"
    assert attributes(executed)["gen_ai.tool.call.id"] == "look"
    assert len(chats) == 2
    said = attributes(chats[1])
    assert said["gen_ai.usage.input_tokens"] == 100
    assert said["gen_ai.usage.cache_read.input_tokens"] == 90
    assert said["gen_ai.usage.cache_write.input_tokens"] == 5
    assert list(said["gen_ai.response.finish_reasons"]) == ["stop"]
    assert said["gen_ai.provider.name"] == "scripted"


async def test_a_streamed_run_has_one_span_a_call(seen: Seen) -> None:
    agent = agent_of(["many words " * 50], middleware=[seen.telemetry()])

    await agent.run("hi", stream=True).get_final_response()

    names = [span.name for span in seen.exporter.get_finished_spans()]
    assert names == ["chat scripted", "invoke_agent"]


def test_a_request_carries_the_trace_on(seen: Seen) -> None:
    sent: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return answer(request)

    backend = OpenAIBackend(api_key="k", api="chat", transport=httpx.MockTransport(serve))
    telemetry = seen.telemetry()
    ctx = AgentContext.start(backend, options=SendOptions(model="gpt-5.4"))
    ctx.ask(Send("hi", around=telemetry.around_model))
    ctx.say("again")

    span = seen.span("chat gpt-5.4")
    trace_id, span_id = sent[0].headers["traceparent"].split("-")[1:3]
    assert (int(trace_id, 16), int(span_id, 16)) == ids(span)
    assert "traceparent" not in sent[1].headers


def test_what_is_said_stays_off_the_spans_unless_it_is_asked_for(seen: Seen) -> None:
    ctx = AgentContext.start(ScriptedBackend(["Secret two.", "Secret four."]))
    ctx.ask(Send("Secret one.", around=seen.telemetry().around_model))
    plain = seen.exporter.get_finished_spans()[0].to_json()
    ctx.ask(Send("Secret three.", around=seen.telemetry(content=True).around_model))

    said = attributes(seen.exporter.get_finished_spans()[1])
    assert "Secret" not in plain
    inputs = json.loads(said["gen_ai.input.messages"])
    assert [part["text"] for message in inputs for part in message["parts"]] == [
        "Secret one.", "Secret two.", "Secret three.",
    ]  # fmt: skip
    assert "Secret four." in said["gen_ai.output.messages"]


def test_a_failure_is_on_the_span_by_its_kind(seen: Seen) -> None:
    ctx = AgentContext.start(ScriptedBackend([BackendError("no", kind=ErrorKind.AUTH)]))
    with pytest.raises(BackendError):
        ctx.ask(Send("hi", around=seen.telemetry().around_model))

    [span] = seen.exporter.get_finished_spans()
    assert attributes(span)["error.type"] == "auth"
    assert not span.status.is_ok


def test_a_compacted_conversation_says_so(seen: Seen) -> None:
    ctx = AgentContext.start(ScriptedBackend(["Summary.", "Hello."]))
    ctx.ask(Extend([Message.user("word " * 50), Message.assistant("word " * 50)] * 5))
    ctx.ask(Compress())
    ctx.ask(Send("hi", around=seen.telemetry().around_model))

    assert attributes(seen.span("chat scripted"))["gen_ai.conversation.compacted"] is True


async def test_tokens_and_durations_are_counted(seen: Seen) -> None:
    agent = agent_of(
        [Completion(message=Message.assistant("hi"), usage=USAGE)], middleware=[seen.telemetry()]
    )
    await agent.run("hi", options={"model": "m"})

    counted = seen.metrics()
    assert counted["gen_ai.client.inference.usage.input_tokens"][0].value == 100
    assert counted["gen_ai.client.inference.usage.cache_read.input_tokens"][0].value == 90
    [duration] = counted["gen_ai.client.inference.duration"]
    assert duration.count == 1
    assert dict(duration.attributes)["gen_ai.request.model"] == "m"
    assert counted["gen_ai.invoke_agent.duration"][0].count == 1


def test_what_happens_to_the_conversations_of_a_host_is_counted(seen: Seen) -> None:
    telemetry = seen.telemetry()
    with Host(MemoryStore(), ScriptedBackend()) as host:
        telemetry.watch(host)
        ref = host.get("c")
        ref.ask(Extend([Message.user(f"word {number}") for number in range(50)]))
        ref.ask(Compress(SlidingWindow(10)))

        wait_until(lambda: "agent_context.compressions" in seen.metrics())
        counted = seen.metrics()
        assert counted["agent_context.compressions"][0].value == 1
        assert counted["agent_context.compression.removed_messages"][0].value > 0
        assert counted["agent_context.conversations.live"][0].value == 1


def test_vendors_are_called_what_they_are_called_there(seen: Seen) -> None:
    body = {
        "type": "message",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
    }
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=body))
    ctx = AgentContext.start(AnthropicBackend(api_key="k", transport=transport))
    ctx.ask(Send("hi", around=seen.telemetry().around_model))

    assert attributes(seen.span("chat anthropic"))["gen_ai.provider.name"] == "anthropic"
