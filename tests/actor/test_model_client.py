"""What a turn costs and how it is tried again: counted once, rendered once, in time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agent_context import AgentContext, BackendError, ErrorKind, Extend, Message, Send, SendOptions
from agent_context._actor.model_client import ModelClient
from agent_context._context import stored_message
from agent_context._context.zones import Zones
from agent_context.models import ModelFacts
from agent_context.protocol import EstimateTokens, Update
from agent_context.stores.sqlite import SqliteStore
from agent_context.tools import tool
from agent_context.wire import rendering
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.scripted import ScriptedBackend
from agent_context_backends.zhipu import ZhipuBackend
from benchmarks.material import talk as make_talk
from benchmarks.turns import answer
from tests.actor.conftest import Talk


@tool
def look(where: str) -> str:
    """Look around."""
    return where


Make = Callable[[], ChatCompletionsBackend]
MAKE: dict[str, Make] = {
    "deepseek": lambda: DeepSeekBackend(api_key="k", transport=httpx.MockTransport(answer)),
    "deepseek responses": lambda: DeepSeekBackend(
        api_key="k", api="responses", transport=httpx.MockTransport(answer)
    ),
    "openai": lambda: OpenAIBackend(api_key="k", api="chat", transport=httpx.MockTransport(answer)),
    "openai responses": lambda: OpenAIBackend(
        api_key="k", api="responses", transport=httpx.MockTransport(answer)
    ),
    "zhipu": lambda: ZhipuBackend(api_key="k", transport=httpx.MockTransport(answer)),
}
OPTIONS = SendOptions(
    context_window=10_000_000, max_tokens=100, tools=[look.spec], scratch="It is noon."
)


class Counted:
    """How often a function was called."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: object, **kwargs: object) -> object:
        self.calls += 1
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@pytest.mark.parametrize("after", ["", "an edit", "a restart"])
def test_a_turn_renders_what_is_new_and_nothing_else(
    make: Make, after: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    store = SqliteStore(f"{tmp_path}/talks.db")
    ctx = AgentContext.start(make(), options=OPTIONS, store=store, id="c")
    ctx.ask(Extend(tuple(make_talk(300))))
    ctx.ask(Send(messages=[Message.user("one")]))
    if after == "an edit":
        ctx.ask(Update(3, Message.user("It was another day.")))
    if after == "a restart":
        ctx.stop()
        ctx = AgentContext.start(make(), options=OPTIONS, store=store, id="c")
    ctx.ask(Send(messages=[Message.user("two")]))
    counted = Counted(rendering.render)
    monkeypatch.setattr(rendering, "render", counted)

    for n in range(5):
        ctx.ask(Send(messages=[Message.user(f"again {n}")]))

    assert counted.calls <= 5 * 4  # the last answer, the new question, scratch, and a margin
    ctx.stop()
    store.close()


def test_a_plain_turn_validates_three_messages_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = AgentContext.start(MAKE["deepseek"](), options=OPTIONS)
    ctx.ask(Extend(tuple(make_talk(50))))
    ctx.ask(Send(messages=[Message.user("warm up")]))
    validated = Counted(lambda: None)
    schema: Any = Message.__pydantic_validator__

    class Validator:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("validate_"):
                validated.calls += 1
            return getattr(schema, name)

    monkeypatch.setattr(Message, "__pydantic_validator__", Validator())
    ctx.ask(Send(messages=[Message.user("And?")]))

    assert 1 <= validated.calls <= 3


def test_facts_are_looked_up_once_in_a_turn(talk: Talk) -> None:
    class Asked(ScriptedBackend):
        asked = 0

        def model_facts(self, model: str | None) -> ModelFacts:
            Asked.asked += 1
            return super().model_facts(model)

    backend = Asked(["yes", "yes"])
    ctx = talk(backend)
    ctx.ask(Send(messages=[Message.user("one")]))
    Asked.asked = 0
    ctx.ask(Send(messages=[Message.user("two")]))

    assert Asked.asked == 1


def test_stored_messages_are_not_parsed_again(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = talk(["one", "two"])
    ctx.ask(Extend(tuple(make_talk(200))))
    ctx.ask(Send(messages=[Message.user("And?")]))
    parsed = Counted(stored_message.StoredMessage.message.fget)  # type: ignore[attr-defined]
    monkeypatch.setattr(stored_message.StoredMessage, "message", property(parsed))

    # ScriptedBackend itself reads all messages to count its usage: a stub that doesn't is asked.
    ctx.ask(EstimateTokens())

    assert parsed.calls <= 1


PROGRAM = """
import httpx
from agent_context import AgentContext, Message, Send
from agent_context.protocol import CacheReport, EstimateTokens
from agent_context._context import tokens
from agent_context_backends.openai import OpenAIBackend
from benchmarks.turns import answer

ctx = AgentContext.start(OpenAIBackend(api_key="k", transport=httpx.MockTransport(answer)))
for _ in range(3):
    ctx.ask(Send(messages=[Message.user("How are you? " * 50)]))
assert not tokens.is_vocabulary_loaded("o200k_base"), "loaded for nothing"
used = ctx.ask(EstimateTokens())
assert used.exact
assert tokens.is_vocabulary_loaded("o200k_base")
ctx.ask(Send(messages=[Message.user("And now?")]))
ctx.stop()
print("fine")
"""


def test_no_vocabulary_is_loaded_while_a_request_fits_whatever_its_tokens_are() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=50
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.mark.parametrize("seconds", [99_999_999_999, 3_600, 31])
def test_a_pause_that_outlasts_the_turn_is_the_vendors_error_at_once(
    talk: Talk, seconds: float
) -> None:
    busy = BackendError("slow down", kind=ErrorKind.RATE_LIMITED, retry_after=seconds)
    ctx = talk([busy, "never"])
    start = time.monotonic()

    with pytest.raises(BackendError, match="slow down") as caught:
        ctx.ask(Send(SendOptions(timeout=30), messages=[Message.user("Hi")]))

    assert caught.value.retry_after == seconds
    assert time.monotonic() - start < 10


def test_a_short_pause_is_waited_for(talk: Talk) -> None:
    busy = BackendError("slow down", kind=ErrorKind.RATE_LIMITED, retry_after=0.01)
    assert talk([busy, "Hello."]).ask(Send(messages=[Message.user("Hi")])).message.text == "Hello."


async def test_a_call_without_a_deadline_does_not_wait_for_ever_because_a_vendor_says_so() -> None:
    busy = BackendError("busy", kind=ErrorKind.RATE_LIMITED, retry_after=99_999_999_999.0)
    backend = ScriptedBackend([busy, "never"])
    model = ModelClient(backend, "c").bind(SendOptions())

    with pytest.raises(BackendError, match="busy"):
        await model.ask(Zones(), ())
