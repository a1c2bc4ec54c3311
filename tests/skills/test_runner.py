"""A script runs as a process of its own, with its time and its words limited."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_context.errors import InvalidOptions, SkillError
from agent_context.skills import AgentSkill, ScriptResult, SubprocessScriptRunner
from tests.skills.conftest import CORPUS, MakeSkill
from tests.support.waiting import WAIT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes as POSIX has them")


async def run(path: Path, name: str, *args: str, **settings: Any) -> ScriptResult:
    runner = SubprocessScriptRunner(**settings)
    return await runner.run(AgentSkill.from_dir(path).script(name), args)


@pytest.mark.behaviour(87)
@pytest.mark.parametrize(
    ("skill", "name", "said"),
    [
        ("code-review", "scripts/lint.sh", "linting a b; $(c) from scripts\n"),
        ("code-review", "lint.sh", "linting a b; $(c) from scripts\n"),
        ("pdf-forms", "fill.py", "filled a b; $(c) from scripts\n"),
    ],
)
async def test_a_script_runs_with_its_arguments(skill: str, name: str, said: str) -> None:
    result = await run(CORPUS / skill, name, "a", "b; $(c)")

    assert result == ScriptResult(exit_code=0, stdout=said, stderr="")


async def test_a_python_script_is_as_if_it_ran_from_its_file(make_skill: MakeSkill) -> None:
    text = """
from __future__ import annotations
import os, sys
import helper
if __name__ == "__main__":
    print(__file__, sys.argv, helper.VALUE, os.getcwd(), os.environ["SKILL_DIR"], sep="|")
    print(sys.modules["__main__"].__file__ == __file__, len(globals()) < 20)
    sys.exit(3)
"""
    path = make_skill("x", scripts__run_py=text, scripts__helper_py="VALUE = 7")

    result = await run(path, "run.py", "-c", "--x")

    script = f"{path}/scripts/run.py"
    assert result.stdout == (f"{script}|{[script, '-c', '--x']}|7|{path}|{path}\nTrue True\n"), (
        result.stderr
    )
    assert result.exit_code == 3


async def test_a_python_script_that_fails_names_its_own_line(make_skill: MakeSkill) -> None:
    path = make_skill("x", scripts__run_py="\n\nraise ValueError('no')")

    result = await run(path, "run.py")

    assert result.exit_code == 1
    assert 'scripts/run.py", line 3' in result.stderr
    assert "ValueError: no" in result.stderr


async def test_a_shell_script_knows_its_own_place(make_skill: MakeSkill) -> None:
    text = 'set -eu\ncd "$(dirname "$BASH_SOURCE")"\nls; echo "$0|$#|$2"\nexit 4\n'
    path = make_skill("x", scripts__run_sh=text)

    result = await run(path, "run.sh", "-e", "two words")

    assert result == ScriptResult(4, f"run.sh\n{path}/scripts/run.sh|2|two words\n", "")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
async def test_a_node_script_is_as_if_it_ran_from_its_file(make_skill: MakeSkill) -> None:
    text = """#!/usr/bin/env node
const help = require('./help');
console.log([__filename, process.argv.slice(2), require.main === module, help].join('|'));
process.exit(5);
"""
    path = make_skill("x", scripts__run_js=text, scripts__help_js="module.exports = 7")

    result = await run(path, "run.js", "--a", "b")

    said = f"{path}/scripts/run.js|--a,b|true|7\n"
    assert result == ScriptResult(5, said, ""), result.stderr


async def test_a_script_sees_only_the_environment_that_it_may(
    make_skill: MakeSkill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("MINE", "yes")
    path = make_skill("x", scripts__run_py="import os; print(sorted(os.environ))")

    plain = await run(path, "run.py")
    more = await run(path, "run.py", env=["PATH", "MINE"], variables={"EXTRA": "1"})

    assert "OPENAI_API_KEY" not in plain.stdout
    assert "'PATH'" in plain.stdout
    assert "'EXTRA', " in more.stdout
    assert "'MINE', " in more.stdout


async def test_a_script_has_no_input(make_skill: MakeSkill) -> None:
    path = make_skill("x", scripts__run_py="import sys; print(repr(sys.stdin.read()))")

    assert (await run(path, "run.py")).stdout == "''\n"


def holding(fifo: Path, *, begin: str = "", then: str = "") -> str:
    """A Python script that opens a pipe, and keeps it open as long as it lives."""
    return f"""
import os, time
{begin}
os.write(os.open({str(fifo)!r}, os.O_WRONLY), b"x")
{then}
time.sleep(60)
"""


LEAVING = """
ready, told = os.pipe()
if os.fork():
    os.read(ready, 1)
    os.write(1, b"done")
    os._exit(0)
"""


def fifo_in(folder: Path) -> Path:
    path = folder / "alive"
    os.mkfifo(path)
    return path


async def test_a_script_that_takes_too_long_is_killed_with_its_children(
    make_skill: MakeSkill, tmp_path: Path
) -> None:
    fifo = fifo_in(tmp_path)
    script = f"exec 3>{fifo}\necho x >&3; echo begun; sleep 60 & sleep 60"
    path = make_skill("x", scripts__run_sh=script)
    alive = asyncio.create_task(asyncio.to_thread(fifo.read_bytes))

    result = await run(path, "run.sh", timeout=1.0)

    async with asyncio.timeout(WAIT):
        assert await alive == b"x\n"
    assert result == ScriptResult(None, "begun\n", "")


async def test_what_a_script_leaves_behind_ends_with_it(
    make_skill: MakeSkill, tmp_path: Path
) -> None:
    fifo = fifo_in(tmp_path)
    script = holding(fifo, begin=LEAVING, then="os.write(told, b'x')")
    path = make_skill("x", scripts__run_py=script)
    alive = asyncio.create_task(asyncio.to_thread(fifo.read_bytes))

    async with asyncio.timeout(WAIT):
        result = await run(path, "run.py")
        assert await alive == b"x"

    assert result == ScriptResult(0, "done", "")


async def test_a_cancelled_run_kills_the_script(make_skill: MakeSkill, tmp_path: Path) -> None:
    fifo = fifo_in(tmp_path)
    path = make_skill("x", scripts__run_py=holding(fifo))
    running = asyncio.create_task(run(path, "run.py"))
    file = await asyncio.to_thread(fifo.open, "rb")
    assert await asyncio.to_thread(file.read, 1) == b"x"

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(WAIT):
        assert await asyncio.to_thread(file.read) == b""
    file.close()


async def test_of_endless_output_the_beginning_and_the_end_are_kept(make_skill: MakeSkill) -> None:
    text = "import sys\nfor n in range(200_000): print(f'{n:06}')\nsys.stderr.write('x' * 99)"
    path = make_skill("x", scripts__run_py=text)

    result = await run(path, "run.py", max_output=100)

    assert result.truncated
    assert result.stdout.startswith("000000\n000001\n")
    assert result.stdout.endswith("199998\n199999\n")
    assert "[… 1399900 bytes left out …]" in result.stdout
    assert result.stderr == "x" * 99


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("run.rb", r"'scripts/run.rb' can't be run: only .js, .py, .sh can"),
        ("nothing.py", r"not found; there are: 'scripts/run.py', 'scripts/run.rb'"),
        ("../outside.py", r"'\.\.' is not taken|`\.\.` is not taken"),
        ("references/doc.py", "not found"),
    ],
)
async def test_only_listed_scripts_run(name: str, said: str, make_skill: MakeSkill) -> None:
    path = make_skill(
        "x", scripts__run_rb="puts 1", scripts__run_py="pass", references__doc_py="pass"
    )

    with pytest.raises(SkillError, match=said):
        await run(path, name)


@pytest.mark.parametrize(
    ("args", "settings", "said"),
    [
        (["a\0b"], {}, "no NUL"),
        ([], {"programs": {".py": "no-such-program"}}, "there is no no-such-program"),
        (["x" * 3_000_000], {}, "can't be started"),
    ],
)
async def test_what_cannot_start_says_why(
    args: Sequence[str], settings: dict[str, Any], said: str, make_skill: MakeSkill
) -> None:
    path = make_skill("x", scripts__run_py="pass")

    with pytest.raises(SkillError, match=said):
        await run(path, "run.py", *args, **settings)


@pytest.mark.parametrize(
    "settings", [{"timeout": 0}, {"max_output": 0}, {"programs": {".rb": "ruby"}}]
)
def test_a_runner_that_makes_no_sense_cannot_be_made(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptions):
        SubprocessScriptRunner(**settings)
