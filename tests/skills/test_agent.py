"""An agent with skills: told of them in the instructions, given them in the conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from agent_context import Compress, Message, Role, SlidingWindow, Summarize
from agent_context.agent import Agent
from agent_context.protocol import Clear
from agent_context.providers import ContextProvider, ContextResult, SkillsProvider
from agent_context.sessions.session import AgentSession
from agent_context.skills import AgentSkill, SkillMetadata, SubprocessScriptRunner
from agent_context_backends.scripted import ScriptedBackend
from tests.skills.conftest import CORPUS
from tests.skills.test_provider import LOAD, QUERY, asks


def agent(backend: ScriptedBackend, provider: SkillsProvider, *others: ContextProvider) -> Agent:
    return Agent(backend, "You are exact.", context_providers=[*others, provider])


async def loaded(agent: Agent, session: AgentSession) -> Any:
    response = await agent.run("Query, please.", session=session)
    [told] = [said for said in response.messages if said.role is Role.TOOL]
    return json.loads(told.text)


@pytest.mark.behaviour(81)
@pytest.mark.behaviour(83)
async def test_the_model_hears_of_skills_in_its_instructions() -> None:
    backend = ScriptedBackend(["Hello."])
    provider = SkillsProvider.scan(CORPUS)

    await agent(backend, provider).run("hi")

    [request] = backend.requests
    assert request.records[0].message.text == f"You are exact.\n\n{provider.build_advertise()}"
    assert [tool.name for tool in request.options.tools] == ["load_skill", "read_skill_resource"]
    assert "Logic errors" not in str([record.message for record in request.records])


@pytest.mark.behaviour(88)
async def test_a_model_works_by_a_skill() -> None:
    read = asks("read_skill_resource", name="code-review", path="style-guide.md")
    lint = asks("run_skill_script", name="code-review", path="lint.sh", args=["a.py"])
    backend = ScriptedBackend(
        [
            Message.assistant(tool_calls=[asks("load_skill", skill_name="code-review")]),
            Message.assistant(tool_calls=[read, lint]),
            "It is fine.",
        ]
    )
    provider = SkillsProvider.scan(CORPUS).with_script_runner(
        SubprocessScriptRunner(), approval="never"
    )

    response = await agent(backend, provider).run("Review a.py")

    told = [json.loads(said.text) for said in response.messages if said.role is Role.TOOL]
    assert response.text == "It is fine."
    assert told[0]["instructions"].startswith("# Code Review Skill")
    assert told[1]["content"].startswith("# Style guide")
    assert told[2]["stdout"] == "linting a.py from scripts\n"


async def test_a_script_that_needs_approval_leaves_the_run_pending() -> None:
    lint = asks("run_skill_script", name="code-review", path="lint.sh")
    backend = ScriptedBackend([Message.assistant(tool_calls=[lint]), "Done."])
    provider = SkillsProvider.scan(CORPUS).with_script_runner(SubprocessScriptRunner())
    working = agent(backend, provider)
    session = working.create_session()

    first = await working.run("Lint", session=session)
    second = await working.run(approvals={lint.id: True}, session=session)

    assert first.pending == (lint,)
    assert second.text == "Done."


async def test_a_skill_is_told_once_as_long_as_the_model_sees_it() -> None:
    backend = ScriptedBackend([LOAD, "1", LOAD, "2", LOAD, "3", LOAD, "4"])
    working = agent(backend, SkillsProvider([QUERY]))
    session = working.create_session()
    first, second = await loaded(working, session), await loaded(working, session)
    assert session.conversation is not None
    await working.drain(session)
    await session.conversation.aask(Compress(SlidingWindow(1)))

    third = await loaded(working, session)
    await working.drain(session)
    await session.conversation.aask(Clear())
    fourth = await loaded(working, session)

    assert ["instructions" in told for told in (first, second, third, fourth)] == [
        True, False, False, True,
    ]  # fmt: skip


class Forgetful(ContextProvider):
    """Sends nothing of what was said before."""

    async def on_invoking(
        self, agent: Any, session: Any, messages: object, options: object
    ) -> ContextResult:
        return ContextResult(replace_messages=True)


async def test_what_a_run_does_not_send_the_model_does_not_see() -> None:
    backend = ScriptedBackend([LOAD, "1", LOAD, "2"])
    working = agent(backend, SkillsProvider([QUERY]), Forgetful())
    session = working.create_session()

    told = [await loaded(working, session), await loaded(working, session)]

    assert all("instructions" in each for each in told)


async def test_instructions_outlive_the_summary_of_what_was_said() -> None:
    long = AgentSkill.dynamic(SkillMetadata(name="db-query", description="d"), "Be exact. " * 40)
    backend = ScriptedBackend([LOAD, "1 " * 200, "2 " * 200, "They counted.", "3"])
    working = agent(backend, SkillsProvider([long]))
    session = working.create_session()
    for text in ("one", "two"):
        await working.run(text, session=session)
    await working.drain(session)
    assert session.conversation is not None

    await session.conversation.aask(Compress(Summarize(keep=1)))
    await working.run("three", session=session)

    sent: Sequence[Message] = [record.message for record in backend.requests[-1].records]
    assert any("They counted." in said.text for said in sent)
    assert any("Be exact. " * 40 in said.text for said in sent if said.role is Role.TOOL)
