"""Backends by name: `openai:gpt-5.4` in the place of an object."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent_context import Agent, AgentContext, Host, SendOptions
from agent_context._installed_backends import resolve_backend
from agent_context.errors import InvalidOptions
from agent_context.protocol import EstimateTokens
from agent_context.stores.memory import MemoryStore
from agent_context_backends.deepseek import DeepSeekBackend

OPENERS: list[Callable[[str], object]] = [
    AgentContext.start,
    Agent,
    lambda name: Host(MemoryStore(), name),
]


def test_a_name_may_say_the_model_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-none")

    backend, options = resolve_backend("deepseek:deepseek-pro", SendOptions(temperature=0.5))

    assert isinstance(backend, DeepSeekBackend)
    assert options is not None
    assert (options.model, options.temperature) == ("deepseek-pro", 0.5)


def test_options_that_say_a_model_have_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-none")

    _, options = resolve_backend("deepseek:one", SendOptions(model="other"))

    assert options is not None
    assert options.model == "other"


def test_a_conversation_an_agent_and_a_host_take_a_name() -> None:
    with AgentContext.start("echo") as ctx:
        assert ctx.say("Hello").text == "You said: Hello"
    assert Agent("echo").run_sync("Hello").text == "You said: Hello"
    with Host(MemoryStore(), "echo") as host:
        assert host.get("c").say("Hello").text == "You said: Hello"


def test_the_window_is_that_of_the_model_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-none")

    with AgentContext.start("anthropic:claude-haiku-4-5") as ctx:
        assert ctx.ask(EstimateTokens()).window == 200_000


@pytest.mark.parametrize("opener", OPENERS)
def test_a_name_that_is_not_installed_says_what_is(opener: Callable[[str], object]) -> None:
    with pytest.raises(InvalidOptions, match="there is no 'opnai'; there is anthropic, deepseek"):
        opener("opnai:gpt-5.4")


@pytest.mark.parametrize("opener", OPENERS)
def test_a_name_whose_key_is_missing_says_which(
    opener: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)

    with pytest.raises(InvalidOptions, match="DEEPSEEK_API_KEY"):
        opener("deepseek")
