"""A skill is what its directory was when it was read, or what a program says."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_context.errors import SkillError
from agent_context.skills import AgentSkill, SkillMetadata
from tests.skills.conftest import CORPUS, MakeSkill

QUERY = SkillMetadata(name="db-query", description="查询数据库并返回结果")


@pytest.mark.behaviour(74)
def test_a_skill_is_metadata_and_a_directory_or_instructions_and_resources() -> None:
    skill = AgentSkill.from_dir(CORPUS / "code-review")

    assert skill.metadata.name == skill.name == "code-review"
    assert skill.metadata.metadata == {"author": "team-qa", "version": "1.2"}
    assert (skill.metadata.license, skill.metadata.compatibility) == ("MIT", "all")
    assert (skill.root_dir, skill.instructions) == (CORPUS / "code-review", None)
    assert (skill.resources, skill.warnings) == ({}, ())
    assert (QUERY.license, QUERY.compatibility, QUERY.metadata) == (None, None, {})


@pytest.mark.behaviour(75)
def test_a_directory_without_a_skill_file_is_no_skill(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match=r"SKILL\.md.*no such file"):
        AgentSkill.from_dir(tmp_path)
    with pytest.raises(SkillError, match="no such directory"):
        AgentSkill.from_dir(tmp_path / "nowhere")


@pytest.mark.behaviour(75)
def test_the_metadata_is_read_at_once(make_skill: MakeSkill) -> None:
    with pytest.raises(SkillError, match=r"skills/bad'.*no description"):
        AgentSkill.from_dir(make_skill("bad", "name: bad"))


@pytest.mark.behaviour(76)
def test_a_dynamic_skill_needs_no_files() -> None:
    skill = AgentSkill.dynamic(QUERY, "# Query").with_resource("schema.sql", "CREATE TABLE users;")

    assert skill.load_instructions() == "# Query"
    assert skill.resource_names == ("schema.sql",)
    assert skill.read_resource("schema.sql") == "CREATE TABLE users;"
    assert skill.has_resources()
    assert not skill.has_scripts()
    assert not AgentSkill.dynamic(QUERY, "").has_resources()


@pytest.mark.behaviour(76)
def test_only_a_dynamic_skill_takes_resources(make_skill: MakeSkill) -> None:
    skill = AgentSkill.from_dir(make_skill("files"))

    with pytest.raises(SkillError, match=r"is a directory: put 'a.md' in there"):
        skill.with_resource("a.md", "text")


def test_a_dynamic_skill_has_no_scripts() -> None:
    with pytest.raises(SkillError, match="a dynamic skill has none"):
        AgentSkill.dynamic(QUERY, "x").script("run.py")


def test_with_a_resource_it_is_another_skill() -> None:
    plain = AgentSkill.dynamic(QUERY, "x")

    richer = plain.with_resource("./docs/a.md", "A").with_resource("b.bin", b"\x00\xff")

    assert plain.resource_names == ()
    assert richer.resource_names == ("b.bin", "docs/a.md")
    assert richer.read_resource("a.md") == "A"
    assert richer.read_bytes("b.bin") == b"\x00\xff"


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "", "."])
def test_a_resource_lies_below_its_skill(name: str) -> None:
    with pytest.raises(SkillError):
        AgentSkill.dynamic(QUERY, "x").with_resource(name, "text")


@pytest.mark.behaviour(77)
def test_the_instructions_are_the_body_as_it_is_now(make_skill: MakeSkill) -> None:
    path = make_skill("x", body="First.\n\n---\n\nrest")
    skill = AgentSkill.from_dir(path)
    first = skill.load_instructions()

    (path / "SKILL.md").write_text("---\nname: x\n---\nSecond.")

    assert first == "First.\n\n---\n\nrest"
    assert skill.load_instructions() == "Second."


@pytest.mark.parametrize("content", ["gone", b"---\nname: x\n---\n\xff"])
def test_instructions_that_cannot_be_read_any_more_say_so(
    content: str | bytes, make_skill: MakeSkill
) -> None:
    path = make_skill("x")
    skill = AgentSkill.from_dir(path)
    (path / "SKILL.md").write_bytes(content.encode() if isinstance(content, str) else content)

    with pytest.raises(SkillError, match="skill 'x': "):
        skill.load_instructions()


@pytest.mark.behaviour(78)
@pytest.mark.parametrize("folder", ["references", "assets"])
def test_a_folder_for_resources_is_enough_to_have_some(folder: str, make_skill: MakeSkill) -> None:
    path = make_skill("x")
    before = AgentSkill.from_dir(path).has_resources()
    (path / folder).mkdir()

    assert not before
    assert AgentSkill.from_dir(path).has_resources()


@pytest.mark.behaviour(78)
def test_a_skill_has_scripts_if_there_is_anything_in_scripts(make_skill: MakeSkill) -> None:
    path = make_skill("x")
    (path / "scripts").mkdir()
    empty = AgentSkill.from_dir(path).has_scripts()
    (path / "scripts" / "run.sh").write_text("true")

    assert not empty
    assert AgentSkill.from_dir(path).has_scripts()


def test_resources_are_all_files_that_are_meant_for_the_model(make_skill: MakeSkill) -> None:
    path = make_skill(
        "x",
        forms_md="root",
        LICENSE_txt="no",
        references__a_md="a",
        references__LICENSE_txt="about licences",
        deep__down__here_xsd="<x/>",
        scripts__run_py="pass",
        scripts__data_xml="<x/>",
        node_modules__m__index_js="no",
        __pycache___x_pyc=b"no",
    )
    (path / ".git").mkdir()
    (path / ".git" / "config").write_text("no")
    (path / "nested").mkdir()
    (path / "nested" / "SKILL.md").write_text("no")

    skill = AgentSkill.from_dir(path)

    assert skill.resource_names == (
        "forms.md", "deep/down/here.xsd", "references/LICENSE.txt", "references/a.md",
    )  # fmt: skip
    assert skill.script_names == ("scripts/run.py",)


def test_a_skill_with_endless_files_is_listed_within_limits(make_skill: MakeSkill) -> None:
    path = make_skill("x")
    (path / "many").mkdir()
    for number in range(1_005):
        (path / "many" / f"{number:04}.md").touch()

    skill = AgentSkill.from_dir(path)

    assert len(skill.resource_names) < 1_000
    assert skill.warnings == ("it has more files than are listed",)


@pytest.mark.behaviour(86)
def test_a_bare_name_means_the_one_file_of_that_name(make_skill: MakeSkill) -> None:
    skill = AgentSkill.from_dir(
        make_skill(
            "x",
            top_md="top",
            references__guide_md="reference",
            assets__guide_md="asset",
            assets__page_html="page",
            other__page_html="other page",
            other__deep__only_txt="only",
            assets__top_md="not the top",
        )
    )

    found = {
        name: skill.read_resource(name)
        for name in ["references/guide.md", "guide.md", "page.html", "only.txt", "top.md"]
    }

    assert found == {
        "references/guide.md": "reference",
        "guide.md": "reference",
        "page.html": "page",
        "only.txt": "only",
        "top.md": "top",
    }


@pytest.mark.behaviour(86)
def test_a_name_that_may_be_several_files_is_refused_with_them(make_skill: MakeSkill) -> None:
    skill = AgentSkill.from_dir(
        make_skill("x", references__a__n_md="1", references__b__n_md="2", c__n_md="3")
    )

    with pytest.raises(SkillError, match=r"may be any of 'references/a/n.md', 'references/b/n.md'"):
        skill.read_resource("n.md")
    assert skill.read_resource("./references//b/n.md") == "2"


def test_a_name_that_is_not_listed_is_refused_with_those_that_are(make_skill: MakeSkill) -> None:
    path = make_skill("x", a_md="a")
    skill = AgentSkill.from_dir(path)
    (path / "later.md").write_text("it came after the skill was read")

    for name in ["later.md", "SKILL.md", "deep/a.md", "A.md"]:
        with pytest.raises(SkillError, match=r"not found; there are: 'a.md'"):
            skill.read_resource(name)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"text\x00text"])
def test_a_binary_resource_is_no_text(content: bytes, make_skill: MakeSkill) -> None:
    skill = AgentSkill.from_dir(make_skill("x", a_bin=content))

    with pytest.raises(SkillError, match=r"'a.bin' is binary \(\d+ bytes\)"):
        skill.read_resource("a.bin")
    assert skill.read_bytes("a.bin") == content


def test_a_resource_that_is_too_large_is_refused(make_skill: MakeSkill) -> None:
    skill = AgentSkill.from_dir(make_skill("x", a_md="x" * 300_000))

    with pytest.raises(SkillError, match="300000 bytes"):
        skill.read_resource("a.md")


def test_strictness_is_the_specification(make_skill: MakeSkill) -> None:
    good = make_skill("good", "name: good\ndescription: d\nallowed-tools: Read")
    others = [
        make_skill("other", "name: else\ndescription: d"),
        make_skill("unknown", "name: unknown\ndescription: d\nversion: 1"),
        make_skill("long", f"name: long\ndescription: {'d' * 1_025}"),
        make_skill("unquoted", "name: unquoted\ndescription: when: now"),
        make_skill("twice", "name: twice\nname: twice\ndescription: d"),
        make_skill("far", f"name: far\ndescription: d\ncompatibility: {'c' * 501}"),
        make_skill("nameless", "description: d"),
    ]

    assert AgentSkill.from_dir(good, strict=True).warnings == ()
    for path in others:
        AgentSkill.from_dir(path)
        with pytest.raises(SkillError, match=rf"skill in '.*{path.name}'"):
            AgentSkill.from_dir(path, strict=True)
