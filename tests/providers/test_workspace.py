import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from agent_context.agent import Agent
from agent_context.errors import InvalidOptions, PathNotAllowed
from agent_context.messages import Message, ToolCall
from agent_context.providers.context import SessionContext
from agent_context.providers.workspace import WorkspaceProvider
from agent_context.providers.workspace_files import FileLimits
from agent_context.sessions.session import AgentSession
from agent_context.tools import Toolbox
from agent_context_backends.scripted import ScriptedBackend

TEXT = "one\ntwo Words\nthree\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "docs").mkdir(parents=True)
    (root / "notes.txt").write_text(TEXT)
    (root / "docs" / "a.md").write_text("# words\n")
    (root / "image.png").write_bytes(b"\x89PNG\0\0words")
    (root / ".git").mkdir()
    (root / ".git" / "words").write_text("words")
    (tmp_path / "work-evil").mkdir()
    (tmp_path / "work-evil" / "secret.txt").write_text("words of a secret")
    return root


class Model:
    """Calls a provider's tools as a model does."""

    def __init__(self, provider: WorkspaceProvider) -> None:
        self.toolbox = Toolbox(provider.tools)

    async def __call__(self, name: str, **arguments: Any) -> str:
        outcome = await self.toolbox.run([self.call(name, arguments)])
        return outcome.results[0].text if outcome.results else "pending"

    @staticmethod
    def call(name: str, arguments: dict[str, Any]) -> ToolCall:
        return ToolCall(id="c", name=name, arguments=json.dumps(arguments))


@pytest.fixture
def model(root: Path) -> Model:
    return Model(WorkspaceProvider(root))


async def test_files_are_listed_with_their_sizes_but_for_what_is_skipped(model: Model) -> None:
    assert await model("list_files") == (
        "[workspace] .\nimage.png (11 bytes)\nnotes.txt (20 bytes)\ndocs/a.md (8 bytes)"
    )
    assert await model("list_files", path="docs") == "[workspace] docs\ndocs/a.md (8 bytes)"
    assert "a.md" in await model("list_files", pattern="docs/*")
    assert await model("list_files", pattern="*.py") == (
        "[workspace] .: no file there matches '*.py'"
    )


async def test_a_file_is_read_whole_or_in_lines(model: Model, root: Path) -> None:
    whole = "[workspace] notes.txt: lines 1 to 3 of 3\none\ntwo Words\nthree"

    assert await model("read_file", path="notes.txt") == whole
    assert await model("read_file", path=str(root / "docs" / ".." / "notes.txt")) == whole.replace(
        "notes.txt", str(root / "docs" / ".." / "notes.txt"), 1
    )
    assert await model("read_file", path="notes.txt", first_line=2, lines=1) == (
        "[workspace] notes.txt: lines 2 to 2 of 3\ntwo Words"
    )
    assert "no such lines" in await model("read_file", path="notes.txt", first_line=9)


async def test_what_is_no_text_is_noticed(model: Model, root: Path) -> None:
    (root / "latin.txt").write_bytes(b"\xe9t\xe9")

    assert "no text, but 11 bytes" in await model("read_file", path="image.png")
    assert "no text in UTF-8" in await model("read_file", path="latin.txt")


async def test_lines_are_found_wherever_they_stand(model: Model) -> None:
    assert await model("search_files", text="WORDS") == (
        "[workspace] .\nnotes.txt:2: two Words\ndocs/a.md:1: # words"
    )
    assert await model("search_files", text="words", path="notes.txt") == (
        "[workspace] notes.txt\nnotes.txt:2: two Words"
    )
    assert "no line there holds 'gone'" in await model("search_files", text="gone")
    assert "what should be found?" in await model("search_files", text="")


async def test_what_is_written_is_there(model: Model, root: Path) -> None:
    assert await model("write_file", path="new/x.txt", content="é\n") == (
        "[workspace] new/x.txt: 3 bytes written"
    )
    assert (root / "new" / "x.txt").read_text() == "é\n"


async def test_a_piece_is_replaced_if_it_is_the_only_one(model: Model, root: Path) -> None:
    edit = {"path": "notes.txt", "old": "t", "new": "T"}

    assert "holds that piece 2 times" in await model("edit_file", **edit)
    assert "does not hold that piece" in await model("edit_file", **{**edit, "old": "gone"})
    assert "which piece" in await model("edit_file", **{**edit, "old": ""})
    assert (root / "notes.txt").read_text() == TEXT

    assert "2 replaced" in await model("edit_file", **edit, every=True)
    assert "1 replaced" in await model("edit_file", **{**edit, "old": "one", "new": "1"})
    assert (root / "notes.txt").read_text() == "1\nTwo Words\nThree\n"


async def test_an_edit_keeps_windows_line_ends(model: Model, root: Path) -> None:
    (root / "dos.txt").write_bytes(b"a\r\nb\r\n")

    assert "lines 1 to 2 of 2\na\nb" in await model("read_file", path="dos.txt")
    await model("edit_file", path="dos.txt", old="b", new="c")

    assert (root / "dos.txt").read_bytes() == b"a\r\nc\r\n"


def outside(root: Path) -> list[str]:
    return ["../work-evil/secret.txt", str(root.parent / "work-evil" / "secret.txt"), "/etc/passwd"]


async def test_outside_is_denied_to_every_tool(model: Model, root: Path) -> None:
    for path in [*outside(root), "..", "/"]:
        for name, more in [
            ("read_file", {}),
            ("list_files", {}),
            ("search_files", {"text": "words"}),
            ("write_file", {"content": "x"}),
            ("edit_file", {"old": "words", "new": "x"}),
        ]:
            assert "outside the workspace" in await model(name, path=path, **more)
    assert (root.parent / "work-evil" / "secret.txt").read_text() == "words of a secret"


@pytest.mark.parametrize("policy", ["deny", "allow"])
async def test_no_link_leads_out_of_the_workspace(root: Path, policy: Any) -> None:
    model = Model(WorkspaceProvider(root, policy=policy))
    (root / "link").symlink_to(root.parent / "work-evil")
    (root / "file").symlink_to(root.parent / "work-evil" / "secret.txt")

    for path in ("link/secret.txt", "file"):
        assert "link" in await model("read_file", path=path)
        await model("write_file", path=path, content="x")
    assert "secret" not in await model("list_files")
    assert "secret" not in await model("list_files", path="link")
    assert "of a secret" not in await model("search_files", text="words")
    assert "of a secret" not in await model("search_files", text="words", path="file")
    assert (root.parent / "work-evil" / "secret.txt").read_text() == "words of a secret"


async def test_what_is_outside_may_be_allowed_and_is_said_to_be_outside(root: Path) -> None:
    model = Model(WorkspaceProvider(root, policy="allow"))
    secret = root.parent / "work-evil" / "secret.txt"

    for path in outside(root)[:2]:
        assert (await model("read_file", path=path)).startswith(f"[outside_workspace] {path}")
    assert await model("search_files", text="secret", path="../work-evil") == (
        f"[outside_workspace] ../work-evil\n{secret}:1: words of a secret"
    )
    await model("write_file", path=str(secret), content="new")
    assert secret.read_text() == "new"


async def test_what_is_outside_may_need_approval(root: Path) -> None:
    model = Model(WorkspaceProvider(root, policy="approve"))
    path = outside(root)[0]

    assert await model("read_file", path=path) == "pending"
    assert await model("write_file", path=path, content="x") == "pending"
    assert "lines" in await model("read_file", path="notes.txt")
    assert "written" in await model("write_file", path="x", content="x")

    call = model.call("read_file", {"path": path})
    allowed = await model.toolbox.resume([call], {"c": True})
    assert allowed.results[0].text.endswith("words of a secret")


async def test_writing_may_need_approval_or_be_out_of_the_question(root: Path) -> None:
    careful = Model(WorkspaceProvider(root, write_approval="require"))
    reader = WorkspaceProvider(root, writable=False)

    assert await careful("write_file", path="x", content="x") == "pending"
    assert "lines" in await careful("read_file", path="notes.txt")
    assert [tool.name for tool in reader.tools] == ["list_files", "read_file", "search_files"]


async def test_what_is_too_much_is_cut_or_refused(root: Path) -> None:
    limits = FileLimits(bytes=25, lines=1, hits=1, names=1)
    model = Model(WorkspaceProvider(root, limits=limits))
    (root / "long.txt").write_text("words\n" * 10)

    assert "it has 60 bytes, of which at most 25" in await model("read_file", path="long.txt")
    assert "26 bytes can't be written" in await model("write_file", path="x", content="x" * 26)
    assert "lines 1 to 1 of 3" in await model("read_file", path="notes.txt")
    assert "more than these 1" in await model("list_files")
    assert (await model("search_files", text="words")).count("\n") == 2


def test_a_wrong_root_or_policy_is_refused(root: Path) -> None:
    with pytest.raises(PathNotAllowed, match="no such directory"):
        WorkspaceProvider(root / "none")
    wrong: Any = "maybe"
    with pytest.raises(InvalidOptions, match="one of deny, approve, allow, not 'maybe'"):
        WorkspaceProvider(root, policy=wrong)


async def test_the_model_is_told_of_its_workspace_in_the_same_words_each_time(root: Path) -> None:
    provider = WorkspaceProvider(root, name="notes")
    agent = ScriptedBackend([]).as_agent()
    state: dict[str, Any] = {}
    contexts = [SessionContext(), SessionContext()]

    for context in contexts:
        await provider.before_run(agent=agent, session=AgentSession(), context=context, state=state)

    assert contexts[0].instructions == contexts[1].instructions
    assert "## Workspace notes" in contexts[0].instructions[0]
    assert str(root) in contexts[0].instructions[0]
    assert [tool.name for tool in contexts[0].tools] == [
        "list_files", "read_file", "search_files", "write_file", "edit_file",
    ]  # fmt: skip
    assert state == {"name": "notes", "root": str(root), "policy": "deny"}
    assert provider.kind == "workspace"


async def test_an_agent_works_in_it(root: Path) -> None:
    call = Model.call("read_file", {"path": "notes.txt"})
    backend = ScriptedBackend([Message.assistant("", tool_calls=[call]), "It says one."])
    agent = Agent(backend, context_providers=[WorkspaceProvider(root)])

    response = await agent.run("What do the notes say?")

    assert response.text == "It says one."
    assert response.messages[1].text.endswith("one\ntwo Words\nthree")


@pytest.mark.parametrize(
    "arguments",
    [
        json.dumps(json.dumps({"path": "/etc/hostname"})),
        '{"path": "notes.txt", "path": "/etc/hostname"}',
        '{"path": "/etc/hostname"\t}',
        ' \n{"path": "../work-evil/secret.txt"} ',
        '{"pa\\u0074h": "../work-evil/secret.txt"}',
    ],
)
async def test_what_is_judged_is_what_would_run(root: Path, arguments: str) -> None:
    toolbox = Toolbox(WorkspaceProvider(root, policy="approve").tools)

    outcome = await toolbox.run([ToolCall(id="c", name="read_file", arguments=arguments)])

    assert outcome.results == ()
    [pending] = outcome.pending
    judged = json.loads(pending.arguments)["path"]
    assert judged in {"/etc/hostname", "../work-evil/secret.txt"}


@pytest.mark.parametrize("name", [".env", ".github/ci.yml", "..data", "...", ".a/.b/.c"])
async def test_a_leading_dot_belongs_to_the_name(model: Model, root: Path, name: str) -> None:
    (root / "env").write_text("another file")

    written = await model("write_file", path=name, content="KEY=1\n")
    edited = await model("edit_file", path=name, old="KEY", new="ID")

    assert written == f"[workspace] {name}: 6 bytes written"
    assert edited == f"[workspace] {name}: 1 replaced"
    assert (root / name).read_text() == "ID=1\n"
    assert name in await model("list_files")
    assert await model("read_file", path=name) == f"[workspace] {name}: lines 1 to 1 of 1\nID=1"
    assert (root / "env").read_text() == "another file"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\nc\r\nd\r\n", "a\nb\nc", "x", b"x\r\nd\r\n"),
        (b"a\nb\r\nc\n", "a\n", "x\n", b"x\nb\r\nc\n"),
        (b"a\nb\n", "a\r\nb", "x", b"x\n"),
        (b"\xef\xbb\xbfa\nb\n", "a\nb", "x", b"\xef\xbb\xbfx\n"),
        (b"\xef\xbb\xbfa\r\nb", "b", "c\nd", b"\xef\xbb\xbfa\r\nc\r\nd"),
        (b"a\nb", "a\nb", "c", b"c"),
    ],
)
async def test_an_edit_keeps_line_ends_and_byte_order_mark(
    model: Model, root: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    (root / "f.txt").write_bytes(before)

    edited = await model("edit_file", path="f.txt", old=old, new=new)

    assert edited == "[workspace] f.txt: 1 replaced"
    assert (root / "f.txt").read_bytes() == after


async def test_a_piece_with_both_line_ends_stands_there_twice(model: Model, root: Path) -> None:
    (root / "f.txt").write_bytes(b"a\nb;a\r\nb;")

    assert "holds that piece 2 times" in await model("edit_file", path="f.txt", old="a\nb", new="")
    assert "2 replaced" in await model("edit_file", path="f.txt", old="a\nb", new="c", every=True)
    assert (root / "f.txt").read_bytes() == b"c;c;"


async def test_an_edit_that_grows_past_the_limit_is_refused_before_it_is_made(
    model: Model, root: Path
) -> None:
    (root / "f.txt").write_text("a" * 100_000)
    tracemalloc.start()

    refused = await model("edit_file", path="f.txt", old="a", new="b" * 100_000, every=True)

    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "10000000000 bytes can't be written" in refused
    assert most < 50_000_000
    assert (root / "f.txt").read_text() == "a" * 100_000
