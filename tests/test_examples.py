"""The examples of docs/ run, offline, and print what they promise."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from agent_context_backends.scripted import ScriptedBackend

EXAMPLES = Path(__file__).parents[1] / "docs/examples"

PRINTS = {
    "context_provider": "User's favorite food is pizza.",
    "history_provider": "in the audit:    ['user', 'assistant', 'user', 'assistant']",
    "compression_provider": "The session keeps all 8 messages.",
    "run_lifecycle": "The request was another one: True",
    "agent_with_tools": "value: Booking(flight='OSL-KIX at 9:00', seat='12A')",
}


def run(path: Path, *arguments: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-W", "error", path, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    return finished.stdout


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_runs(name: str) -> None:
    assert PRINTS[name] in run(EXAMPLES / f"{name}.py")


def test_an_agent_goes_on_in_the_next_process_and_finds_what_is_hidden(tmp_path: Path) -> None:
    told = [run(EXAMPLES / "durable_agent.py", str(tmp_path / "talks.db")) for _ in range(2)]

    assert "process 1:" in told[0]
    assert "messages are hidden from the model now" in told[0]
    assert "process 2:" in told[1]
    found = r"model: I looked it up\. user, [\d-]+ [\d:]+ UTC: My parrot is called Polly\."
    assert re.search(found, told[1])


@pytest.mark.behaviour(64)
@pytest.mark.behaviour(65)
def test_what_a_user_likes_is_told_in_the_next_run() -> None:
    client = ScriptedBackend(["noted", "pizza"])
    provider = loaded("context_provider").UserPreferenceProvider()
    agent = client.as_agent(context_providers=[provider])
    session = agent.create_session()

    agent.run_sync("My favorite food is  pizza. ", session=session)
    agent.run_sync("What shall I eat?", session=session)

    assert client.requests[0].options.instructions is None
    assert client.requests[1].options.instructions == "User's favorite food is pizza."


@pytest.mark.behaviour(65)
def test_a_mistake_in_a_providers_own_code_costs_no_answer() -> None:
    client = ScriptedBackend(["noted", "what?"])
    provider = loaded("context_provider").UserPreferenceProvider()
    agent = client.as_agent(context_providers=[provider])
    session = agent.create_session()

    first = agent.run_sync("My Favorite Food is pizza.", session=session)
    second = agent.run_sync("What shall I eat?", session=session)

    assert (first.text, second.text) == ("noted", "what?")
    assert session.state["user-preferences"] == {}


@pytest.mark.behaviour(68)
@pytest.mark.behaviour(69)
@pytest.mark.behaviour(73)
async def test_a_database_of_the_programs_own_keeps_the_key_that_it_chose_first() -> None:
    module = loaded("history_provider")
    db = module.Database()
    provider = module.DatabaseHistoryProvider(db)
    state: dict[str, object] = {}
    from agent_context import Message

    await provider.save_messages(None, [], state=state)
    assert state == {}
    await provider.save_messages(None, [Message.user("a")], state=state)
    await provider.save_messages("later", [Message.user("b")], state=state)

    assert state == {"db-history": {"history_key": "default"}}
    found = await provider.get_messages("later", state=state)
    assert [message.text for message in found] == ["a", "b"]
    assert await provider.get_messages("later") == []
