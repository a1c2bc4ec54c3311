"""A directory of skills is read as far as it can be, always in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from agent_context.errors import SkillError
from agent_context.skills import scan
from tests.skills.conftest import CORPUS, MakeSkill
from tests.support.examples import examples


@pytest.mark.behaviour(79)
def test_every_immediate_subdirectory_with_a_skill_file_is_a_skill(make_skill: MakeSkill) -> None:
    for name in ["b", "a"]:
        make_skill(name, nested__deep_md="x")
    (make_skill.root / "a" / "nested" / "SKILL.md").write_text("---\nname: n\n---\n")
    (make_skill.root / "empty").mkdir()
    (make_skill.root / "SKILL").write_text("a file")

    found = scan(make_skill.root)

    assert [skill.name for skill in found.skills] == ["a", "b"]
    assert found.diagnostics == ()


def test_one_bad_skill_hides_no_other(make_skill: MakeSkill) -> None:
    make_skill("good")
    make_skill("bad", "name: bad")
    make_skill("odd", "name: Odd Name\ndescription: d")

    found = scan(make_skill.root)

    assert [skill.name for skill in found.skills] == ["good", "Odd Name"]
    said = {(Path(each.where).name, each.text.partition(":")[0]) for each in found.diagnostics}
    assert said == {
        ("bad", f"skill in '{make_skill.root}/bad'"),
        ("odd", "name 'Odd Name'"),
        ("odd", "name 'Odd Name' is not that of its directory, 'odd'"),
    }


def test_a_strict_scan_leaves_out_what_departs(make_skill: MakeSkill) -> None:
    make_skill("good")
    make_skill("odd", "name: even\ndescription: d")

    assert [skill.name for skill in scan(make_skill.root, strict=True).skills] == ["good"]


def test_a_linked_skill_is_left_out_and_named(make_skill: MakeSkill, tmp_path: Path) -> None:
    elsewhere = make_skill("here").rename(tmp_path / "elsewhere")
    (make_skill.root / "link").symlink_to(elsewhere)

    found = scan(make_skill.root)

    assert found.skills == ()
    assert "a link is not followed" in found.diagnostics[0].text


def test_a_skill_file_that_is_a_link_is_not_read(make_skill: MakeSkill, tmp_path: Path) -> None:
    path = make_skill("x")
    (path / "SKILL.md").rename(tmp_path / "secret")
    (path / "SKILL.md").symlink_to(tmp_path / "secret")

    found = scan(make_skill.root)

    assert found.skills == ()
    assert "link" in found.diagnostics[0].text


def test_a_skill_in_the_place_of_a_directory_of_skills_is_told(make_skill: MakeSkill) -> None:
    found = scan(make_skill("x"))

    assert found.skills == ()
    assert "from_dir" in found.diagnostics[0].text


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match=r"no skills in .*No such file"):
        scan(tmp_path / "nowhere")


@pytest.mark.behaviour(103)
def test_skills_as_they_are_found_in_the_wild_all_load() -> None:
    found = scan(CORPUS)

    skills = {skill.name: skill for skill in found.skills}
    assert list(skills) == [
        "code-review", "office-documents", "pdf-forms", "poster-design", "server-builder",
        "service-api", "template-skill",
    ]  # fmt: skip
    assert len(skills["service-api"].metadata.description) == 1_068
    assert {Path(each.where).name for each in found.diagnostics} == {"service-api", "template"}
    assert skills["pdf-forms"].resource_names == ("forms.md", "reference.md")
    assert skills["server-builder"].resource_names == ("reference/node.md", "reference/python.md")
    assert skills["office-documents"].script_names == (
        "scripts/office/pack.py", "scripts/office/validators/base.py",
    )  # fmt: skip
    assert not skills["office-documents"].has_resources()
    assert skills["poster-design"].resource_names == (
        "poster-fonts/Plain-OFL.txt", "poster-fonts/Plain-Regular.ttf",
    )  # fmt: skip
    assert skills["service-api"].read_resource("tool-use.md") == "# Tools in Python\n"
    assert skills["server-builder"].metadata.description == (
        "Guide for building servers that offer tools to a model.\nUse when asked for one."
    )


@examples(allow=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_whatever_a_skill_file_holds_the_others_are_found(
    make_skill: MakeSkill, content: bytes
) -> None:
    for name in ("good", "wild"):
        if not (make_skill.root / name).exists():
            make_skill(name)
    (make_skill.root / "wild" / "SKILL.md").write_bytes(b"---\n" + content)

    assert "good" in [skill.name for skill in scan(make_skill.root).skills]
