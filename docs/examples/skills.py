"""An agent that reviews code by a skill from a directory, and knows another from the program.

Runs offline: a script plays the model, and calls the tools as a model would.
"""

import asyncio
from pathlib import Path

from agent_context import Message, Role, ToolCall
from agent_context.agent import Agent
from agent_context.providers import AgentSkillsProvider
from agent_context.skills import AgentSkill, SkillMetadata, SubprocessScriptRunner
from agent_context_backends.scripted import ScriptedBackend


def calls(name: str, arguments: str) -> Message:
    """What a model says when it wants a tool."""
    return Message.assistant(tool_calls=[ToolCall(id=name, name=name, arguments=arguments)])


MODEL = ScriptedBackend(
    [
        calls("load_skill", '{"skill_name": "code-review"}'),
        calls("read_skill_resource", '{"name": "code-review", "path": "style-guide.md"}'),
        calls("run_skill_script", '{"name": "code-review", "path": "lint.sh", "args": ["a.py"]}'),
        "Line 3: the name says nothing.",
    ]
)

# One way: directories that hold a SKILL.md.
scanned = AgentSkillsProvider.scan(Path(__file__).parent / "skills")

# Another: skills from a database, a server, or the program itself.
custom = AgentSkill.dynamic(
    SkillMetadata(name="db-query", description="Query the database and return what it says."),
    "# Database Query Skill\n\n## Instructions\n...",
).with_resource("schema.sql", "CREATE TABLE users (...);")

provider = (
    AgentSkillsProvider()
    .with_skill(custom)
    .with_skills(scanned.skills)
    .with_script_runner(SubprocessScriptRunner(timeout=10), approval="never")
)


async def main() -> None:
    agent = Agent(MODEL, "You are a reviewer.", context_providers=[provider])
    print(provider.build_advertise())

    response = await agent.run("Review a.py, please.")

    for message in response.messages:
        if message.role is Role.TOOL:
            print(f"\n[{message.tool_call_id}] {message.text[:120]}")
    print(f"\n{response.text}")


asyncio.run(main())
