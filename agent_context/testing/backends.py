"""What every backend must do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import ClassVar, TypeVar, cast
from unittest import SkipTest

from agent_context._actor import AgentContext
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import from_message
from agent_context._context.zones import Zones
from agent_context.backend import ContextBackend, Request
from agent_context.errors import BackendError
from agent_context.messages import Completion, FinishReason, Message, Role, ToolCall
from agent_context.options import SendOptions
from agent_context.protocol import Messages, Send, SendStream
from agent_context.stream_events import (
    Finished,
    ReasoningDelta,
    StreamAccumulator,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)

__all__ = ["BackendContract", "request_of"]

R = TypeVar("R")


def request_of(
    backend: ContextBackend, *messages: Message, options: SendOptions | None = None
) -> Request:
    """A request with these messages, as a conversation would make it."""
    options = options or SendOptions()
    return Request(
        conversation_id="testing",
        zones=Zones(incremental=PersistentVector.of(map(from_message, messages))),
        options=options,
        facts=backend.model_facts(options.model),
    )


class BackendContract:
    """The contract. A subclass provides `make_backend`, and `make_failing_backend` if it can."""

    options: ClassVar[SendOptions] = SendOptions(max_tokens=64)
    question: ClassVar[str] = "Say hello."

    def make_backend(self) -> ContextBackend:
        """A backend that answers any question with some text."""
        raise NotImplementedError

    def make_failing_backend(self) -> ContextBackend:
        """A backend whose server refuses every request."""
        raise SkipTest("no failing backend is provided")

    def test_a_whole_answer_is_a_completion(self) -> None:
        completion = self._run(self._send)

        assert isinstance(completion, Completion)
        assert completion.message.role is Role.ASSISTANT
        assert completion.message.text
        assert isinstance(completion.finish_reason, FinishReason)
        assert completion.message.finish_reason in {None, completion.finish_reason}

    def test_usage_counts_or_says_nothing(self) -> None:
        usage = self._run(self._send).usage

        for figure in (usage.input_tokens, usage.output_tokens, usage.cached_tokens):
            assert figure is None or figure >= 0

    def test_an_answer_does_not_claim_to_come_from_elsewhere(self) -> None:
        backend = self.make_backend()

        origin = self._run(self._send, backend).message.origin

        assert origin is None or origin.vendor == backend.vendor

    def test_nothing_follows_finished(self) -> None:
        events = self._run(self._stream)

        assert events
        assert not any(isinstance(event, Finished) for event in events[:-1])

    def test_a_stream_has_known_events_only(self) -> None:
        known = (TextDelta, ReasoningDelta, ToolCallDelta, UsageReported, Finished)

        events = self._run(self._stream)

        assert all(isinstance(event, known) for event in events)

    def test_the_pieces_of_a_stream_are_the_finished_message(self) -> None:
        assembly = StreamAccumulator.from_events(self._run(self._stream))

        pieces = assembly.to_message()
        whole = assembly.completion.message if assembly.completion else pieces
        assert pieces.text
        assert pieces.text == whole.text
        assert pieces.reasoning == whole.reasoning
        assert pieces.tool_calls == whole.tool_calls

    def test_merged_chunks_are_the_message(self) -> None:
        backend = self.make_backend()

        events = self._run(self._stream, backend)

        pieces = [event for event in events if not isinstance(event, Finished)]
        whole = StreamAccumulator.from_events(events).to_message().text
        assert backend.merge_chunks(events).text == backend.merge_chunks(pieces).text == whole

    def test_a_conversation_stores_what_it_says(self) -> None:
        ctx = AgentContext.start(self.make_backend(), options=self.options)
        try:
            whole = ctx.ask(Send(messages=[Message.user(self.question)])).message
            stored = ctx.ask(Messages())
        finally:
            ctx.stop()

        assert stored[-1] == whole
        assert whole.origin is not None
        assert whole.finish_reason is not None

    def test_a_conversation_stores_what_it_streams(self) -> None:
        ctx = AgentContext.start(self.make_backend(), options=self.options)
        try:
            with ctx.ask(SendStream(messages=[Message.user(self.question)])) as stream:
                text = "".join(event.text for event in stream if isinstance(event, TextDelta))
            stored = ctx.ask(Messages())
        finally:
            ctx.stop()

        assert stored[-1] == stream.message
        assert stream.message.text == text

    def test_a_stream_can_be_closed_early(self) -> None:
        async def first(backend: ContextBackend) -> StreamEvent:
            stream = cast(
                "AsyncGenerator[StreamEvent]", backend.send_stream(self._request(backend))
            )
            async with aclosing(stream):
                return await anext(stream)

        assert self._run(first) is not None

    def test_closing_twice_is_harmless(self) -> None:
        async def close(backend: ContextBackend) -> None:
            await backend.aclose()

        self._run(close)

    def test_a_refused_request_raises_backend_error(self) -> None:
        backend = self.make_failing_backend()

        error = self._run(self._failure, backend)

        assert error.vendor == backend.vendor
        assert str(error)

    def test_factories_make_the_roles_they_name(self) -> None:
        backend = self.make_backend()

        assert backend.user_message("a").role is Role.USER
        assert backend.system_message("a").role is Role.SYSTEM
        assert backend.to_system_message("a").text == "a"
        assert backend.tool_message("c1", "a").tool_call_id == "c1"

    def test_a_message_survives_json(self) -> None:
        backend = self.make_backend()
        message = Message.assistant("ä", tool_calls=[ToolCall(id="c1", name="f")], reasoning="so")

        text = backend.message_to_json(message)

        assert "\n" not in text
        assert backend.message_from_json(text) == message

    def test_an_empty_chunk_says_nothing(self) -> None:
        assert self.make_backend().classify_chunk({}) == ()

    def test_a_text_chunk_says_its_text(self) -> None:
        chunk = {"choices": [{"index": 0, "delta": {"content": "a"}}]}

        assert self.make_backend().classify_chunk(chunk) == (TextDelta("a"),)

    def test_facts_are_sane(self) -> None:
        facts = self.make_backend().model_facts(None)

        assert 0 < facts.max_output <= facts.context_window
        assert 0 < facts.default_reserve < facts.context_window
        assert facts.margin >= 1
        assert facts.vocabulary

    def test_an_unknown_model_has_facts(self) -> None:
        facts = self.make_backend().model_facts("no-such-model-anywhere")

        assert facts.context_window > 0

    def test_longer_messages_cost_more(self) -> None:
        backend = self.make_backend()
        facts = backend.model_facts(None)

        short = backend.estimate_tokens(Message.user("one"), facts)
        long = backend.estimate_tokens(Message.user("one two three four five six seven"), facts)

        assert 0 < short < long

    def test_calls_and_results_go_out_in_pairs(self) -> None:
        backend = self.make_backend()
        unanswered = Message.assistant(tool_calls=[ToolCall(id="c1", name="f")])
        orphan = Message.tool("c2", "late")
        request = request_of(backend, Message.user("q"), unanswered, Message.user("r"), orphan)

        sent = backend.to_request_messages(request)

        calls = [call.id for message in sent for call in message.tool_calls]
        results = [message.tool_call_id for message in sent if message.role is Role.TOOL]
        assert calls == results

    def _request(self, backend: ContextBackend) -> Request:
        return request_of(backend, Message.user(self.question), options=self.options)

    async def _send(self, backend: ContextBackend) -> Completion:
        return await backend.send(self._request(backend))

    async def _stream(self, backend: ContextBackend) -> list[StreamEvent]:
        return [event async for event in backend.send_stream(self._request(backend))]

    async def _failure(self, backend: ContextBackend) -> BackendError:
        try:
            await self._send(backend)
        except BackendError as error:
            return error
        raise AssertionError("the request was not refused")

    def _run(
        self,
        action: Callable[[ContextBackend], Awaitable[R]],
        backend: ContextBackend | None = None,
    ) -> R:
        backend = backend or self.make_backend()

        async def run() -> R:
            try:
                return await action(backend)
            finally:
                await backend.aclose()

        return asyncio.run(run())
