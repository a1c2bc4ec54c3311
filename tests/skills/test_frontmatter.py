"""Whatever stands in a SKILL.md, it is read as YAML or refused with a reason."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_context.errors import SkillError
from agent_context.skills.frontmatter import instructions_of, read_skill_file
from agent_context.skills.metadata import SkillMetadata, one_line, spec_violations
from tests.support.examples import examples


def read(head: str, body: str = "Do it.") -> SkillMetadata:
    return read_skill_file(f"---\n{head}\n---\n{body}", default_name="folder").metadata


def problems(head: str) -> list[str]:
    return list(read_skill_file(f"---\n{head}\n---\n", default_name="folder").problems)


@pytest.mark.behaviour(77)
def test_the_frontmatter_becomes_metadata_and_the_rest_the_instructions() -> None:
    head = (
        "name: code-review\ndescription: Review code.\nlicense: MIT\ncompatibility: all\n"
        'metadata:\n  author: team-qa\n  version: "1.2"\n  plain: 1.20\n  yes: no'
    )

    said = read_skill_file(f"---\n{head}\n---\n\n# Review\n\n---\n\nmore\n", default_name="x")

    assert said.metadata == SkillMetadata(
        name="code-review",
        description="Review code.",
        license="MIT",
        compatibility="all",
        metadata={"author": "team-qa", "version": "1.2", "plain": "1.20", "yes": "no"},
    )
    assert said.instructions == "# Review\n\n---\n\nmore"
    assert said.problems == ()


@pytest.mark.behaviour(77)
@pytest.mark.behaviour(104)
@pytest.mark.parametrize(
    ("head", "description"),
    [
        ("description: a --- b", "a --- b"),
        ('description: "---"', "---"),
        ("description: |\n  one\n  ---\n  two", "one\n---\ntwo"),
        ("description: >\n  one\n  two\n\n  three", "one two\nthree"),
        ("description: >-\n  folded\n  here", "folded here"),
        ('description: "one\n  two"', "one two"),
        ("description: 查询数据库并返回结果", "查询数据库并返回结果"),
        ("description: yes", "yes"),
        ("description: 2026-01-02", "2026-01-02"),
        ("description: &a text\nother: *a", "text"),
        ("description: !!python/object:os.system text", "text"),
    ],
)
def test_values_are_what_yaml_says_and_always_text(head: str, description: str) -> None:
    assert read(f"name: x\n{head}").description == description


def test_a_byte_order_mark_and_windows_lines_are_no_matter() -> None:
    text = "\ufeff---\r\nname: x\r\ndescription: y\r\n--- \r\nOne\r\n\r\nTwo\r\n"

    said = read_skill_file(text, default_name="folder")

    assert (said.metadata.name, said.metadata.description) == ("x", "y")
    assert said.instructions == instructions_of(text) == "One\n\nTwo"


@pytest.mark.parametrize(
    "value",
    [
        "Use this when: the user asks",
        "[beta] it's new",
        "@mention: and `code`",
        "*bold* text",
        "100%: sure",
    ],
)
def test_a_value_that_should_have_been_quoted_is_read_as_if_it_were(value: str) -> None:
    head = f"name: x\ndescription: {value}\nlicense: 'MIT'"

    assert read(head).description == value
    assert any("as if the values were quoted" in text for text in problems(head))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("name: a\nname: b\ndescription: d", "has 'name' twice; the first counts"),
        ("description: d", "it has no name; its directory's is taken, 'folder'"),
        ("name:\ndescription: d", "it has no name"),
        ("name: a\ndescription: d\nlicense: [MIT]", "license is not a text"),
        ("name: a\ndescription: d\nmetadata: x", "metadata is not a list of fields"),
        ("name: a\ndescription: d\nmetadata: {a: {b: c}}", "a is not a text"),
        ("name: a\ndescription: d\n[x, y]: z", "has a field whose name is no text"),
    ],
)
def test_what_can_be_borne_is_noted(head: str, said: str) -> None:
    assert any(said in text for text in problems(head))
    assert read(head).description == "d"


@pytest.mark.behaviour(104)
def test_of_two_values_the_first_counts() -> None:
    assert read("name: a\nname: b\ndescription: d").name == "a"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must begin with frontmatter"),
        ("# Title", "must begin with frontmatter"),
        ("---\nname: x\ndescription: y\n", "must begin with frontmatter"),
        ("---\nname: x\n  ---\n", "must begin with frontmatter"),
        ("---\n---\n", "has no description"),
        ("---\nname: x\n---\n", "has no description"),
        ("---\nname: x\ndescription: ''\n---\n", "has no description"),
        ("---\nname: x\ndescription: ~\n---\n", "has no description"),
        ("---\nname: x\ndescription: [a]\n---\n", "has no description"),
        ("---\n- a\n---\n", "has no description"),
        ("---\nname: 'x\n---\n", "not YAML: line"),
        ('---\nname: "\\UFFFFFFFF"\ndescription: y\n---\n', "not YAML"),
        ("---\nname: x\ndescription: \x01\n---\n", "not YAML"),
        ("---\n- " + "[" * 5_000 + "\n---\n", "not YAML"),
        ("---\na: " + "x" * 70_000 + "\n---\n", "characters, 65536 are allowed"),
    ],
    ids=range(15),
)
def test_what_tells_no_skill_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(SkillError, match=said):
        read_skill_file(text, default_name="folder")


def test_unknown_fields_are_told_apart_and_ignored() -> None:
    head = "name: x\ndescription: y\nallowed-tools: Read\nversion: 3\nauthor: me"

    said = read_skill_file(f"---\n{head}\n---\n", default_name="x")

    assert said.unknown == ("author", "version")
    assert said.problems == ()


def test_a_name_is_made_one_visible_line() -> None:
    assert read('name: "a\\n  b\\e\\u202e"\ndescription: d').name == "a b"
    assert one_line("a\n\n- **b**:\tc\u2028d\x00\u200be") == "a - **b**: c de"


@pytest.mark.parametrize(
    ("name", "description"), [("", "d"), ("a\nb", "d"), (" a", "d"), ("a", ""), ("a", "\n")]
)
def test_metadata_without_a_name_or_a_purpose_cannot_be_made(name: str, description: str) -> None:
    with pytest.raises(SkillError):
        SkillMetadata(name=name, description=description)


@pytest.mark.parametrize(
    ("name", "departs"),
    [
        ("code-review", False),
        ("a1", False),
        ("A", True),
        ("-a", True),
        ("a-", True),
        ("a--b", True),
        ("a b", True),
        ("名", True),
        ("a" * 65, True),
    ],
)
def test_names_are_held_against_the_specification(name: str, departs: bool) -> None:
    assert bool(list(spec_violations(SkillMetadata(name, "d"), name))) is departs


def test_without_a_yaml_reader_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    with pytest.raises(SkillError, match=r"pip install 'context-actor\[skills\]'"):
        read("name: x\ndescription: y")


pieces = st.sampled_from(
    [
        "---", "\n", "\r\n", "name", "description", "metadata", ": ", ":", "- ", "|", ">", "'", '"',
        "[", "{", "}", "]", "&a", "*a", "!!", "#", "%", "\t", "  ", "\\x", "?", "<<", "\ufeff",
        "\0", "\ud800", "é", "名", "...", "~", "0x", "\\UFFFFFFFF", "1:2", "=", "x",
    ]
)  # fmt: skip


@examples(15)
@given(st.one_of(st.lists(pieces, max_size=30).map("".join), st.text(max_size=80)))
@example("a: !!float =\ndescription: x")
def test_no_frontmatter_does_more_than_be_refused(head: str) -> None:
    with suppress(SkillError):
        said = read_skill_file(f"---\n{head}\n---\nbody", default_name="folder")
        assert said.metadata.name == one_line(said.metadata.name)


@examples(3)
@given(st.text(max_size=200))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    with suppress(SkillError):
        read_skill_file(text, default_name="folder")


@pytest.mark.parametrize("text", ["{" * 32_000, "[" * 60_000, "a: [{" * 5_000, "- {[" * 5_000])
@pytest.mark.parametrize("head", ["{}", "description: b\nx: {}"])
def test_brackets_without_end_cost_nothing(head: str, text: str) -> None:
    began = time.process_time()

    with pytest.raises(SkillError, match="more than 50 deep"):
        read(head.replace("{}", text))

    assert time.process_time() - began < 0.2
