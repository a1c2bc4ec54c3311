"""No name and no link leads out of a skill, not even one that is put there in between."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent_context.errors import SkillError
from agent_context.skills import AgentSkill, Script, SubprocessScriptRunner
from tests.skills.conftest import MakeSkill

SECRET = "the secret"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.md"
    path.write_text(SECRET)
    return path


@pytest.mark.behaviour(90)
@pytest.mark.behaviour(104)
@pytest.mark.parametrize(
    "name",
    [
        "../secret.md",
        "references/../../secret.md",
        "references/../../../secret.md",
        "./../secret.md",
        "../skill-ab/references/a.md",
        "..",
        "/etc/passwd",
        "//etc/passwd",
        "\\\\server\\share",
        "..\\secret.md",
        "references/..\\..\\secret.md",
        "C:\\secret.md",
        "references/a.md\0.txt",
        "~/secret.md",
        "%2e%2e/secret.md",
        "",
        ".",
        "references",
        "SKILL.md",
        "scripts/run.py",
        "x" * 5_000,
        "\ud800",
    ],
)
def test_no_name_leads_out_of_a_skill(name: str, make_skill: MakeSkill, secret: Path) -> None:
    make_skill("skill-ab", references__a_md=SECRET)
    path = make_skill("skill-a", references__b_md="fine", scripts__run_py="pass")
    (path.parent / secret.name).write_text(SECRET)
    skill = AgentSkill.from_dir(path)

    with pytest.raises(SkillError):
        skill.read_resource(name)
    with pytest.raises(SkillError):
        skill.script(name if name != "scripts/run.py" else "references/b.md")


@pytest.mark.behaviour(90)
def test_links_are_not_listed(make_skill: MakeSkill, secret: Path) -> None:
    path = make_skill("x", references__a_md="fine", scripts__run_py="pass")
    (path / "references" / "file.md").symlink_to(secret)
    (path / "references" / "folder").symlink_to(secret.parent)
    (path / "scripts" / "link.py").symlink_to(secret)
    (path / "assets").symlink_to(secret.parent)

    skill = AgentSkill.from_dir(path)

    assert skill.resource_names == ("references/a.md",)
    assert skill.script_names == ("scripts/run.py",)


@pytest.mark.behaviour(90)
@pytest.mark.parametrize("part", ["references/a.md", "references"])
def test_a_link_that_comes_later_is_not_followed(
    part: str, make_skill: MakeSkill, tmp_path: Path
) -> None:
    path = make_skill("x", references__a_md="fine")
    other = tmp_path / "outside"
    other.mkdir()
    (other / "a.md").write_text(SECRET)
    skill = AgentSkill.from_dir(path)
    (path / part).rename(tmp_path / "old")
    (path / part).symlink_to(other / "a.md" if part.endswith(".md") else other)

    with pytest.raises(SkillError, match="link"):
        skill.read_resource("references/a.md")


@pytest.mark.behaviour(90)
def test_a_link_in_the_place_of_the_skill_is_not_followed(
    make_skill: MakeSkill, tmp_path: Path
) -> None:
    path = make_skill("x", a_md="fine", scripts__run_py="pass")
    skill = AgentSkill.from_dir(path)
    moved = path.rename(tmp_path / "moved")
    path.symlink_to(moved)

    for read in (skill.load_instructions, lambda: skill.read_resource("a.md")):
        with pytest.raises(SkillError, match="a link has taken its place"):
            read()
    with pytest.raises(SkillError, match="a link has taken its place"):
        skill.script("run.py")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_regular_files_are_read(make: Callable[[Path], None], make_skill: MakeSkill) -> None:
    path = make_skill("x", references__a_md="fine")
    skill = AgentSkill.from_dir(path)
    (path / "references" / "a.md").unlink()
    make(path / "references" / "a.md")

    with pytest.raises(SkillError, match=r"not a regular file|is a directory"):
        skill.read_resource("a.md")


def test_a_hard_link_is_a_file_like_any_other(make_skill: MakeSkill, secret: Path) -> None:
    path = make_skill("x")
    (path / "a.md").hardlink_to(secret)

    assert AgentSkill.from_dir(path).read_resource("a.md") == SECRET


def test_the_skill_itself_may_be_reached_by_a_link(make_skill: MakeSkill, tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to(make_skill("x", a_md="fine"))

    skill = AgentSkill.from_dir(tmp_path / "x")

    assert skill.read_resource("a.md") == "fine"
    assert skill.warnings == ()


@contextmanager
def swapping(path: Path, target: Path) -> Generator[None]:
    """Puts a link to `target` in the place of `path` and takes it away again, all the time."""
    stopped = threading.Event()
    link, spare = path.with_name("link"), path.with_name("spare")
    link.symlink_to(target)

    def swap() -> None:
        while not stopped.is_set():
            path.rename(spare)
            link.rename(path)
            path.rename(link)
            spare.rename(path)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@pytest.mark.behaviour(90)
@pytest.mark.behaviour(104)
@pytest.mark.parametrize("part", ["references/a.md", "references"])
def test_a_link_that_is_swapped_in_and_out_shows_nothing(
    part: str, make_skill: MakeSkill, tmp_path: Path
) -> None:
    path = make_skill("x", references__a_md="fine")
    other = tmp_path / "outside"
    other.mkdir()
    (other / "a.md").write_text(SECRET)
    skill = AgentSkill.from_dir(path)
    seen: set[str] = set()

    with swapping(path / part, other / "a.md" if part.endswith(".md") else other):
        for _ in range(3_000):
            with suppress(SkillError):
                seen.add(skill.read_resource("references/a.md"))

    assert seen == {"fine"}


@pytest.mark.skipif(sys.platform == "win32", reason="processes as POSIX has them")
@pytest.mark.parametrize("suffix", ["py", "sh"])
async def test_a_script_that_is_swapped_for_a_link_does_not_run(
    suffix: str, make_skill: MakeSkill, tmp_path: Path
) -> None:
    bad = tmp_path / f"bad.{suffix}"
    bad.write_text("print('bad')" if suffix == "py" else "echo bad")
    good = "print('good')" if suffix == "py" else "echo good"
    path = make_skill("x", **{f"scripts__run_{suffix}": good})
    skill = AgentSkill.from_dir(path)
    seen: set[str] = set()

    with swapping(path / "scripts" / f"run.{suffix}", bad):
        for _ in range(20):
            script = _caught(skill, f"run.{suffix}")
            seen.add((await SubprocessScriptRunner().run(script, [])).stdout)

    assert seen == {"good\n"}


def _caught(skill: AgentSkill, name: str) -> Script:
    """The script, as soon as its name is no link."""
    for _ in range(100_000):
        with suppress(SkillError):
            return skill.script(name)
    raise AssertionError("it was always a link")


async def test_a_script_runs_as_it_was_when_it_was_checked(make_skill: MakeSkill) -> None:
    path = make_skill("x", scripts__run_py="print('first')")
    script = AgentSkill.from_dir(path).script("run.py")
    (path / "scripts" / "run.py").write_text("print('second')")

    assert (await SubprocessScriptRunner().run(script, [])).stdout == "first\n"
