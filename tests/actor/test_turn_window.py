"""The window in real hands: smaller than it was said to be, filled in mid-turn, or not known."""

from __future__ import annotations

import logging
from collections.abc import Callable

import httpx
import pytest

from agent_context import (
    AgentContext,
    BackendError,
    Completion,
    ErrorKind,
    EstimateTokens,
    Extend,
    FinishReason,
    Incremental,
    Message,
    Messages,
    Send,
    SendOptions,
    SendStream,
    SlidingWindow,
    Summarize,
    TokenBudget,
    ToolCall,
    Usage,
    events,
)
from agent_context.backend import Request
from agent_context.compression import EvictToolResults, Pipeline, Strategy, default_strategy
from agent_context.errors import ContextFull
from agent_context.messages import ImagePart
from agent_context.models import ModelFacts
from agent_context.protocol import CacheReport, Compressed
from agent_context.tools.loop import ToolRound
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.scripted import ScriptedBackend
from tests.actor.conftest import Seen, Talk

FACTS = ModelFacts(context_window=32_000, max_output=1_000, default_reserve=100)


def chat(count: int, words: int = 60) -> list[Message]:
    """About `words` + 10 tokens a message."""
    texts = [f"message {n} " + "word " * words for n in range(count)]
    return [(Message.assistant if n % 2 else Message.user)(text) for n, text in enumerate(texts)]


class SmallServer(ScriptedBackend):
    """Takes fewer tokens than its facts say, and says so when a request is too long."""

    def __init__(self, window: int, *, tells: bool = True) -> None:
        super().__init__((), facts=FACTS)
        self.window = window
        self.tells = tells
        self.refused = 0

    async def send(self, request: Request) -> Completion:
        needed = sum(self.estimate_tokens(record.message, FACTS) for record in request.records)
        if needed + 100 > self.window:
            self.refused += 1
            raise BackendError(
                "too long",
                kind=ErrorKind.CONTEXT_OVERFLOW,
                window=self.window if self.tells else None,
                needed=needed if self.tells else None,
            )
        self.requests.append(request)
        return Completion(
            message=Message.assistant("A summary, or an answer."), finish_reason=FinishReason.STOP
        )


@pytest.mark.parametrize(
    "strategy",
    [default_strategy(), TokenBudget(), Summarize(keep=4), SlidingWindow(6), None],
    ids=["default", "TokenBudget", "Summarize", "SlidingWindow", "none given"],
)
def test_the_window_that_the_server_names_is_the_budget_from_then_on(
    talk: Talk, strategy: Strategy | None
) -> None:
    backend = SmallServer(2_000)
    ctx = talk(backend, compression=strategy)
    ctx.ask(Extend(chat(60)))

    for n in range(10):
        ctx.ask(Send(messages=[Message.user(f"And {n}? " + "more " * 50)]))

    assert backend.refused == 1
    assert ctx.ask(EstimateTokens()).window == 2_000


@pytest.mark.parametrize("strategy", [default_strategy(), TokenBudget()], ids=["default", "budget"])
def test_a_server_that_names_no_window_is_believed_all_the_same(
    talk: Talk, strategy: Strategy
) -> None:
    backend = SmallServer(3_000, tells=False)
    ctx = talk(backend, compression=strategy)
    ctx.ask(Extend(chat(60)))

    ctx.ask(Send(messages=[Message.user("And?")]))

    assert len(backend.requests[-1].records) < 61


def test_a_body_with_too_many_bytes_costs_no_history(talk: Talk) -> None:
    asked: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(413, text="<html>413 Request Entity Too Large</html>")

    backend = OpenAIBackend(api_key="none", transport=httpx.MockTransport(refuse))
    ref = AgentContext.start(backend)
    ref.ask(Extend(chat(20)))
    image = ImagePart(url=f"data:image/png;base64,{'A' * 1_000_000}")

    with pytest.raises(BackendError, match="bytes") as refused:
        ref.ask(Send(messages=[Message.user([image])]))

    assert refused.value.kind is ErrorKind.HISTORY_REJECTED
    assert len(asked) == 1
    assert [message.text for message in ref.ask(Incremental())] == [m.text for m in chat(20)]


def test_an_overflow_of_what_cannot_be_compressed_is_the_vendors_own_error(talk: Talk) -> None:
    overflow = BackendError("your image is too large", kind=ErrorKind.CONTEXT_OVERFLOW)
    ctx = talk([overflow])

    with pytest.raises(BackendError, match="your image is too large"):
        ctx.ask(Send(messages=[Message.user("Look.")]))


def call(name: str) -> Message:
    return Message.assistant("", tool_calls=[ToolCall(id=name, name="look")])


class Looks:
    """Answers each call with a long result."""

    def __init__(self, words: int) -> None:
        self.words = words

    async def answer(
        self, completion: Completion, done: Callable[[Message], object]
    ) -> ToolRound | None:
        calls = completion.message.tool_calls
        return ToolRound([Message.tool(each.id, "found " * self.words) for each in calls])


@pytest.mark.parametrize(
    "strategy",
    [
        default_strategy(),
        TokenBudget(),
        Summarize(keep=0),
        Pipeline([EvictToolResults(1), TokenBudget()]),
    ],
    ids=["default", "TokenBudget", "Summarize", "evict and drop"],
)
def test_the_words_that_began_the_turn_stay_until_it_ends(talk: Talk, strategy: Strategy) -> None:
    def answer(request: Request) -> Message:
        if request.records[-1].message.text.startswith("Summarise"):
            return Message.assistant("They looked around.")
        return call(f"c{len(backend.requests)}") if len(backend.requests) < 14 else done

    done = Message.assistant("It is done.")
    backend = ScriptedBackend([answer] * 60)
    options = SendOptions(context_window=1_500, max_tokens=100)
    ctx = talk(backend, options=options, compression=strategy)
    ctx.ask(Extend(chat(10)))
    question = Message.user("Where did I leave my keys? They are on a red ring.")

    ctx.ask(Send(messages=[question], loop=Looks(200)))

    asked = [r for r in backend.requests if not r.records[-1].message.text.startswith("Summarise")]
    assert len(asked) > 5
    for request in asked:
        assert question.text in [record.message.text for record in request.records]


@pytest.mark.parametrize("strategy", [default_strategy(), TokenBudget()], ids=["default", "budget"])
def test_a_message_of_a_quarter_of_the_window_finds_room(talk: Talk, strategy: Strategy) -> None:
    backend = ScriptedBackend([lambda _: Message.assistant("Short.")] * 40)
    options = SendOptions(context_window=4_000, max_tokens=400)
    ctx = talk(backend, options=options, compression=strategy)

    for n in range(12):
        ctx.ask(Send(messages=[Message.user(f"{n}: " + "word " * 1_000)]))

    assert ctx.ask(EstimateTokens()).free >= 0


def test_a_compression_in_a_tool_loop_changes_the_prefix_once(talk: Talk, seen: Seen) -> None:
    backend = ScriptedBackend([call("a"), call("b"), call("c"), call("d"), "done"])
    options = SendOptions(context_window=1_500, max_tokens=100)
    ctx = talk(backend, options=options, compression=SlidingWindow(1), on_change=seen)
    ctx.ask(Extend(chat(6)))

    ctx.ask(Send(messages=[Message.user("hi")], loop=Looks(300)))

    ctx.stop()
    changed = seen.of(events.PromptPrefixChanged)
    assert len(changed) == len(seen.of(events.Compressed)) - (0 if changed else 1)


def test_rounds_of_one_turn_are_compared_with_each_other(talk: Talk) -> None:
    usage = Usage(input_tokens=1_000, output_tokens=1)
    answers = [
        Completion(message=m, finish_reason=FinishReason.STOP, usage=usage)
        for m in (call("a"), call("b"), Message.assistant("done"))
    ]
    ctx = talk(ScriptedBackend(answers))

    ctx.ask(Send(messages=[Message.user("go")], loop=Looks(5)))

    last = ctx.ask(CacheReport()).last
    assert last is not None
    assert (last.before, last.shared, last.cause) == (1_000, 1_000, None)


@pytest.mark.parametrize("facts", [None, ModelFacts(context_window=0, max_output=0)])
def test_without_a_known_window_nothing_is_compressed_and_nothing_fails(
    talk: Talk, facts: ModelFacts | None, caplog: pytest.LogCaptureFixture
) -> None:
    class Unknown(ScriptedBackend):
        def model_facts(self, model: str | None) -> ModelFacts:
            return facts  # type: ignore[return-value]

        def _usage(self, answer: Message, request: Request) -> Usage:
            return Usage()

    backend = Unknown([lambda _: Message.assistant("fine")] * 5)
    ctx = talk(backend)
    ctx.ask(Extend(chat(300)))

    with caplog.at_level(logging.WARNING):
        ctx.ask(Send(messages=[Message.user("And?")]))
        ctx.ask(Send(messages=[Message.user("And?")]))

    assert len(backend.requests[-1].records) == 303
    assert ctx.ask(EstimateTokens()).window == 0
    warnings = [record for record in caplog.records if "window" in record.getMessage()]
    assert len(warnings) == 1


def test_a_summary_that_stays_empty_gives_way_to_dropping(talk: Talk) -> None:
    empty = BackendError("nothing came", kind=ErrorKind.EMPTY_RESPONSE)
    backend = ScriptedBackend([empty, empty, empty, "Fine."])
    options = SendOptions(context_window=1_500, max_tokens=100, retries=2)
    ctx = talk(backend, options=options)
    ctx.ask(Extend(chat(30)))

    assert ctx.ask(Send(messages=[Message.user("And?")])).message.text == "Fine."
    assert ctx.ask(Compressed()) == ()


def test_the_default_keeps_half_of_the_budget_as_it_was_said(talk: Talk) -> None:
    backend = ScriptedBackend([lambda _: Message.assistant("They talked.")] * 3)
    ctx = talk(backend, options=SendOptions(context_window=4_000, max_tokens=400))
    ctx.ask(Extend(chat(60)))

    ctx.ask(Send(messages=[Message.user("And?")]))

    kept = ctx.ask(EstimateTokens()).incremental
    assert 0.3 * 4_000 < kept < 0.6 * 4_000


def test_a_summary_in_one_piece_is_asked_for_once(talk: Talk) -> None:
    thinks = ModelFacts(context_window=12_000, max_output=8_000, thinks=True)
    backend = ScriptedBackend([lambda _: Message.assistant("They talked.")] * 9, facts=thinks)
    options = SendOptions(thinking=False, max_tokens=500)
    ctx = talk(backend, options=options, compression=Summarize(keep=4))
    ctx.ask(Extend(chat(171)))

    ctx.ask(Send(messages=[Message.user("And?")]))

    assert len(backend.requests) == 2


def test_an_answer_to_half_a_request_is_no_answer(talk: Talk) -> None:
    """Some servers cut what is too long without a word; their token count gives it away."""
    cut = Completion(
        message=Message.assistant("Who are you?"),
        finish_reason=FinishReason.STOP,
        usage=Usage(input_tokens=40_000, output_tokens=3),
    )
    backend = ScriptedBackend([cut, "I have read it all."], facts=FACTS)
    ctx = talk(backend, compression=TokenBudget())
    ctx.ask(Extend(chat(100)))

    answer = ctx.ask(Send(messages=[Message.user("And?")]))

    assert answer.message.text == "I have read it all."
    assert len(backend.requests[1].records) < len(backend.requests[0].records)


def test_a_message_keeps_its_id_however_long_the_talk_is(talk: Talk) -> None:
    ctx = talk(ScriptedBackend([lambda _: Message.assistant("yes")] * 100))
    asked = [Message.user(f"question {n}") for n in range(50)]

    for message in asked:
        ctx.ask(Send(messages=[message]))

    assert [m.id for m in ctx.ask(Incremental())[::2]] == [m.id for m in asked]


def test_a_message_keeps_its_id_when_it_is_sent_again_after_a_failure(talk: Talk) -> None:
    failing = BackendError("no", kind=ErrorKind.AUTH)
    ctx = talk([failing, "yes"])
    ctx.ask(Extend(chat(80)))
    question = Message.user("Well?")
    with pytest.raises(BackendError):
        ctx.ask(Send(messages=[question]))

    ctx.ask(Send(messages=[question]))

    assert ctx.ask(Incremental())[-2].id == question.id


def test_a_full_window_still_says_so(talk: Talk) -> None:
    ctx = talk(options=SendOptions(context_window=300, max_tokens=50))
    with pytest.raises(ContextFull):
        ctx.ask(Send(messages=[Message.user("word " * 400)]))
    assert ctx.ask(Messages()) == ()


def test_a_streamed_answer_to_half_a_request_is_kept_and_told(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    cut = Completion(
        message=Message.assistant("Who are you?"),
        finish_reason=FinishReason.STOP,
        usage=Usage(input_tokens=40_000, output_tokens=3),
    )
    ctx = talk(ScriptedBackend([cut], facts=FACTS))

    with (
        caplog.at_level(logging.WARNING),
        ctx.ask(SendStream(messages=[Message.user("Hi")])) as stream,
    ):
        list(stream)

    assert "has read only a part" in caplog.text
