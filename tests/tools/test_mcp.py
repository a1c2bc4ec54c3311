"""Tools of real MCP servers, over standard input and output and over HTTP."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mcp_types import Tool as ServersTool

from agent_context.errors import InvalidOptions
from agent_context.messages import ImagePart, OpaquePart, TextPart
from agent_context.tools import Toolbox
from agent_context.tools.mcp import McpTools, connection
from tests.support.toolbox import call
from tests.support.waiting import wait_until

SERVER = str(Path(__file__).parents[1] / "support" / "mcp_server.py")
STDIO = [sys.executable, SERVER, "stdio"]


@contextmanager
def over_http(port: int = 0) -> Generator[int]:
    command = [sys.executable, SERVER, "http", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


async def test_a_program_lists_its_tools_by_name() -> None:
    async with McpTools(command=STDIO, prefix="t_", allow={"odd.name/here", "add"}) as server:
        told = Toolbox(server.tools).tools

    assert [item.name for item in told] == ["t_add", "t_odd_name_here"]
    assert told[0].description == "Add."
    assert told[0].parameters == {
        "properties": {"a": {"type": "integer"}, "b": {"default": 1, "type": "integer"}},
        "required": ["a"],
        "type": "object",
    }
    assert server.instructions == "Handle with care."


async def test_tools_whose_names_become_equal_stay_apart() -> None:
    long = "x" * 70
    listed = [
        ServersTool(name=name, input_schema={})
        for name in ("catalog.query", "catalog_query", "catalog/query", long + "1", long + "2")
    ]

    chosen = McpTools(url="http://x").choose(listed)

    names = {item.server_name: item.name for item in chosen}
    assert names["catalog_query"] == "catalog_query"
    assert len(set(names.values())) == len(listed)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names.values())
    again = McpTools(url="http://x", allow=["catalog.query"]).choose(listed[::-1])
    assert [item.name for item in again] == [names["catalog.query"]]


async def test_calls_are_run_and_errors_are_results() -> None:
    async with McpTools(command=STDIO) as server:
        outcome = await Toolbox(server.tools).run(
            [
                call("add", "1", a=2),
                call("odd_name_here", "2", word="x"),
                call("fail", "3"),
                call("add", "4", a="x"),
            ]
        )

    assert [result.text for result in outcome.results[:2]] == ["3", "X"]
    assert outcome.failed == {"3", "4"}
    assert "valid integer" in outcome.results[3].text


async def test_images_and_resources_become_parts() -> None:
    async with McpTools(command=STDIO) as server:
        outcome = await Toolbox(server.tools).run([call("look", "1"), call("everything", "2")])

    picture = ImagePart(url="data:image/png;base64,iVBORw==")
    assert outcome.results[0].parts == (TextPart(text="A dot:"), picture)
    sound = {"data": "AAAAAAAA", "format": "wav"}
    assert outcome.results[1].parts == (
        OpaquePart(data={"type": "input_audio", "input_audio": sound}),
        TextPart(text="[resource memo://1]\nbuy milk"),
        ImagePart(url="data:image/gif;base64,AAAAAAAA"),
        TextPart(text="[resource memo://3: application/zip, about 6 bytes, not shown]"),
        TextPart(text="[resource memo://4: log, a log]"),
    )


async def test_progress_is_reported() -> None:
    heard: list[str] = []

    async with McpTools(command=STDIO) as server:
        box = Toolbox(server.tools, progress=lambda asked, text: heard.append(text))
        await box.run([call("work")])

    assert heard == ["halfway"]


async def test_a_program_gets_only_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")

    async with McpTools(command=STDIO, env={"WORD": "hello"}, cwd=tmp_path) as server:
        outcome = await Toolbox(server.tools).run([call("surroundings")])

    assert outcome.results[0].text == f"hello {tmp_path} False"


async def test_a_server_that_dies_is_started_again_for_the_next_call() -> None:
    async with McpTools(command=STDIO) as server:
        box = Toolbox(server.tools)
        died = await box.run([call("die")])
        after = await box.run([call("add", a=1)])

    assert died.failed == {"c1"}
    assert "was lost during the call of die" in died.results[0].text
    assert "may have been carried out or not" in died.results[0].text
    assert after.results[0].text == "2"


async def test_a_call_that_may_be_repeated_is(tmp_path: Path) -> None:
    async with McpTools(command=STDIO) as server:
        outcome = await Toolbox(server.tools).run([call("die_once", flag=str(tmp_path / "flag"))])

    assert outcome.results[0].text == "alive"


async def test_a_server_speaks_http() -> None:
    with over_http() as port:
        async with McpTools(url=url(port), headers={"x-word": "hello"}) as server:
            outcome = await Toolbox(server.tools).run([call("add", a=2), call("fail", "2")])

    assert outcome.results[0].text == "3"
    assert outcome.failed == {"2"}


async def test_an_http_server_that_dies_is_connected_to_anew() -> None:
    with over_http() as port:
        async with McpTools(url=url(port)) as server:
            box = Toolbox(server.tools)
            died = await box.run([call("die")])
            gone = await box.run([call("add", a=1)])
            with over_http(port):
                after = await box.run([call("add", a=1)])

    assert "was lost during the call of die" in died.results[0].text
    assert "can't be reached" in gone.results[0].text
    assert after.results[0].text == "2"


async def test_calls_may_come_from_another_loop() -> None:
    async with McpTools(command=STDIO) as server:
        box = Toolbox(server.tools)
        outcome = await asyncio.to_thread(asyncio.run, box.run([call("add", a=1)]))

    assert outcome.results[0].text == "2"


async def test_a_server_that_was_left_says_so() -> None:
    async with McpTools(command=STDIO) as server:
        box = Toolbox(server.tools)

    outcome = await box.run([call("add", a=1)])

    assert "was closed by the program" in outcome.results[0].text


async def test_tools_that_are_not_there_are_named() -> None:
    with pytest.raises(InvalidOptions, match="has no tools subtract; it has add, die"):
        await McpTools(command=STDIO, allow={"subtract"}).__aenter__()


@pytest.mark.parametrize("command", [["there-is-no-such-program"], [sys.executable, "-c", ""]])
async def test_a_server_that_cannot_be_reached_is_an_error(command: list[str]) -> None:
    with pytest.raises(InvalidOptions, match="can't be reached"):
        await McpTools(command=command).__aenter__()


def test_a_server_is_a_program_or_an_address() -> None:
    with pytest.raises(InvalidOptions, match="a command or a url"):
        McpTools()
    with pytest.raises(InvalidOptions, match="a list of words"):
        McpTools(command="python server.py")


async def test_arguments_are_read_before_they_are_sent() -> None:
    async with McpTools(command=STDIO) as server:
        [tool] = [item for item in server.tools if item.name == "add"]
        broken = call("add").model_copy(update={"arguments": "[1"})
        outcome = await Toolbox([tool]).run([broken])

    assert "not valid JSON" in outcome.results[0].text


KEY = "sk-0123456789abcdef"


async def test_a_key_in_an_address_is_in_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with over_http() as port:
        where = f"http://ann:{KEY}@127.0.0.1:{port}/mcp?apiKey={KEY}&x=a%20{KEY}"
        async with McpTools(url=where, headers={"authorization": f"Bearer {KEY}"}) as server:
            box = Toolbox(server.tools)
            died = await box.run([call("die")])
            gone = await box.run([call("add", a=1)])
    closed = await box.run([call("add", a=1)])

    told = "".join(outcome.results[0].text for outcome in (died, gone, closed))
    assert told.count(f"MCP server http://127.0.0.1:{port} ") == 3
    assert KEY not in told
    assert KEY not in "".join(r.getMessage() for r in caplog.records if "agent_context" in r.name)


@pytest.mark.parametrize(
    "where", [f"/{KEY}/mcp", f"/?key={KEY}", f"/#{KEY}", f"/?{KEY}", f"/a?b=c+{KEY}%2F"]
)
async def test_what_says_that_a_server_is_not_there_holds_no_key(where: str) -> None:
    with over_http() as port, pytest.raises(InvalidOptions) as refused:
        await McpTools(url=f"http://127.0.0.1:{port}{where}").__aenter__()

    assert f"http://127.0.0.1:{port} can't be reached" in str(refused.value)
    assert KEY not in str(refused.value)


async def test_a_byte_that_is_no_text_stops_nothing() -> None:
    async with McpTools(command=STDIO, timeout=10) as server:
        box = Toolbox(server.tools)
        garbled = await box.run([call("garble", word="said")])
        after = await box.run([call("add", a=1), call("garble", "c2", word="half \ud800")])

    assert garbled.results[0].text == "said"
    assert [result.text for result in after.results] == ["2", "half ?"]


async def test_a_server_that_has_fallen_silent_is_connected_to_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_SIGN_OF_LIFE", 0.5)
    flag = str(tmp_path / "flag")
    async with McpTools(command=STDIO) as server:
        box = Toolbox(server.tools)
        given_up = asyncio.create_task(box.run([call("freeze", flag=flag)]))
        await asyncio.to_thread(wait_until, Path(flag).exists)
        given_up.cancel()
        await asyncio.wait([given_up])
        after = await box.run([call("freeze", flag=flag)])

    assert after.results[0].text == "awake"
