import os
import pickle
import re
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context._sandbox_fs import (
    FileEntry,
    SandboxedDirectory,
    safe_filename,
    split_relative_path,
)
from agent_context.errors import PathNotAllowed


@pytest.fixture
def root(tmp_path: Path) -> SandboxedDirectory:
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    (tmp_path / "root" / "top.txt").write_text("top")
    (tmp_path / "root" / "a" / "b" / "deep.txt").write_text("deep")
    (tmp_path / "root-evil").mkdir()
    (tmp_path / "root-evil" / "secret.txt").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    return SandboxedDirectory(tmp_path / "root")


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


OUTSIDE = [
    "../secret.txt",
    "a/../../secret.txt",
    "../root-evil/secret.txt",
    "/etc/passwd",
    "..",
    "",
]


@pytest.mark.behaviour(104)
@pytest.mark.parametrize("name", [*OUTSIDE, "\\\\host\\x", ".", "a\0b", "a/\ud800"])
def test_a_name_that_could_leave_the_root_is_refused(root: SandboxedDirectory, name: str) -> None:
    with pytest.raises(PathNotAllowed):
        root.open(name)
    with pytest.raises(PathNotAllowed):
        root.write(name, b"x")


@given(st.text(alphabet=st.sampled_from("./a\\\0"), max_size=12))
def test_segments_never_climb(name: str) -> None:
    try:
        parts = split_relative_path(name)
    except PathNotAllowed:
        return
    assert parts
    assert not {"", ".", ".."} & set(parts)
    assert not any("/" in part or "\0" in part for part in parts)


def test_a_file_is_read_by_its_name(root: SandboxedDirectory) -> None:
    assert root.read("a/b/deep.txt", 4) == b"deep"
    assert root.read("./a//b/deep.txt", 99) == b"deep"


def test_a_file_over_the_limit_is_refused_with_both_figures(root: SandboxedDirectory) -> None:
    with pytest.raises(PathNotAllowed, match="it has 4 bytes, of which at most 3 can be read"):
        root.read("a/b/deep.txt", 3)


def test_a_link_is_not_followed_wherever_it_stands(
    root: SandboxedDirectory, tmp_path: Path
) -> None:
    (root.path / "file").symlink_to(tmp_path / "secret.txt")
    (root.path / "inside").symlink_to(root.path / "top.txt")
    (root.path / "dir").symlink_to(tmp_path / "root-evil")
    (root.path / "a" / "dir").symlink_to(tmp_path / "root-evil")

    for name in ("file", "inside", "dir/secret.txt", "a/dir/secret.txt"):
        with pytest.raises(PathNotAllowed, match="link"):
            root.read(name, 99)
    for name in ("dir/new.txt", "a/dir/new.txt"):
        with pytest.raises(PathNotAllowed, match="link"):
            root.write(name, b"x")
    assert _names(tmp_path / "root-evil") == ["secret.txt"]


def test_a_link_in_the_place_of_a_file_is_not_written_through(
    root: SandboxedDirectory, tmp_path: Path
) -> None:
    (root.path / "file").symlink_to(tmp_path / "secret.txt")

    with pytest.raises(PathNotAllowed, match="not a regular file"):
        root.write("file", b"x")

    assert (tmp_path / "secret.txt").read_text() == "secret"


def test_the_roots_own_path_may_have_links(root: SandboxedDirectory, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root.path)

    assert SandboxedDirectory(tmp_path / "link").read("top.txt", 99) == b"top"


def test_a_pipe_is_refused_without_waiting(root: SandboxedDirectory) -> None:
    os.mkfifo(root.path / "pipe")

    with pytest.raises(PathNotAllowed, match="not a regular file"):
        root.open("pipe")


@pytest.mark.parametrize(
    ("name", "why"),
    [("a", "not a regular file"), ("none", "no such file"), ("top.txt/x", "not a directory")],
)
def test_the_reason_says_what_is_wrong(root: SandboxedDirectory, name: str, why: str) -> None:
    with pytest.raises(PathNotAllowed, match=why) as caught:
        root.open(name)

    assert caught.value.name == name
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_root_that_is_no_directory_is_refused(root: SandboxedDirectory) -> None:
    with pytest.raises(PathNotAllowed, match="no such directory"):
        SandboxedDirectory(root.path / "top.txt")


def _put(source: Path, target: Path) -> None:
    """Rename, whatever a write has made in the place of the target."""
    while True:
        try:
            source.rename(target)
        except OSError:
            shutil.rmtree(target, ignore_errors=True)
        else:
            return


def test_a_swap_between_directory_and_link_never_touches_what_is_outside(
    root: SandboxedDirectory, tmp_path: Path
) -> None:
    real, link, now = root.path / "real", root.path / "link", root.path / "now"
    real.mkdir()
    (real / "secret.txt").write_text("fine")
    link.symlink_to(tmp_path / "root-evil")
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            for one in (real, link):
                _put(one, now)
                _put(now, one)

    racer = threading.Thread(target=swap)
    racer.start()
    seen = set()
    try:
        for _ in range(1500):
            with suppress(PathNotAllowed):
                seen.add(root.read("now/secret.txt", 99))
            with suppress(PathNotAllowed):
                root.write("now/secret.txt", b"fine")
    finally:
        ended.set()
        racer.join()

    assert seen <= {b"fine"}
    assert (tmp_path / "root-evil" / "secret.txt").read_text() == "secret"
    assert _names(tmp_path / "root-evil") == ["secret.txt"]


def test_files_are_listed_in_order_without_links(root: SandboxedDirectory, tmp_path: Path) -> None:
    (root.path / "link").symlink_to(tmp_path / "secret.txt")
    (root.path / "z.txt").write_text("z!")
    os.mkfifo(root.path / "pipe")

    assert list(root.files()) == [
        FileEntry("top.txt", 3),
        FileEntry("z.txt", 2),
        FileEntry("a/b/deep.txt", 4),
    ]
    assert [found.name for found in root.files(count=1)] == ["top.txt"]
    assert [found.name for found in root.files(depth=1)] == ["top.txt", "z.txt"]
    assert [found.name for found in root.files(below="a", depth=1)] == ["a/b/deep.txt"]
    with pytest.raises(PathNotAllowed, match="not a directory"):
        list(root.files(below="link"))


def test_a_write_replaces_the_file_and_keeps_its_mode(root: SandboxedDirectory) -> None:
    (root.path / "top.txt").chmod(0o751)

    root.write("top.txt", b"new")

    assert (root.path / "top.txt").read_bytes() == b"new"
    assert (root.path / "top.txt").stat().st_mode & 0o777 == 0o751
    assert _names(root.path) == ["a", "top.txt"]


def test_a_write_makes_the_directories_it_needs(root: SandboxedDirectory) -> None:
    root.write("new/er/file.txt", b"x")

    assert root.read("new/er/file.txt", 9) == b"x"


def test_a_write_that_fails_leaves_the_file_as_it_was(
    root: SandboxedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(PathNotAllowed, match="No space left"):
        root.write("top.txt", b"new")
    assert _names(root.path) == ["a", "top.txt"]
    assert (root.path / "top.txt").read_text() == "top"
    with pytest.raises(PathNotAllowed):
        root.write("a", b"x")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists descriptors")
def test_no_descriptor_is_left_open(root: SandboxedDirectory) -> None:
    before = _names(Path("/proc/self/fd"))
    for name in ("top.txt", "none", "a", "a/none/x", "a/b/deep.txt"):
        with pytest.raises(PathNotAllowed):
            root.read(name, 0)
    list(root.files(count=1))

    assert len(_names(Path("/proc/self/fd"))) == len(before)


def test_without_directory_descriptors_links_are_refused_too(
    root: SandboxedDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_context._sandbox_fs._WALKS", False)
    (root.path / "dir").symlink_to(tmp_path / "root-evil")
    (root.path / "file").symlink_to(tmp_path / "secret.txt")

    assert root.read("a/b/deep.txt", 9) == b"deep"
    root.write("top.txt", b"new")
    assert next(root.files()) == FileEntry("top.txt", 3)
    for name in ("file", "dir/secret.txt"):
        with pytest.raises(PathNotAllowed, match="link"):
            root.read(name, 99)


def test_a_file_is_removed_once(root: SandboxedDirectory) -> None:
    assert root.remove("a/b/deep.txt") is True
    assert root.remove("a/b/deep.txt") is False

    assert _names(root.path / "a" / "b") == []


def test_a_link_is_removed_and_not_what_it_leads_to(
    root: SandboxedDirectory, tmp_path: Path
) -> None:
    (root.path / "link").symlink_to(tmp_path / "secret.txt")

    assert root.remove("link") is True

    assert (tmp_path / "secret.txt").read_text() == "secret"


def test_a_directory_is_not_removed(root: SandboxedDirectory) -> None:
    with pytest.raises(PathNotAllowed):
        root.remove("a")

    assert (root.path / "a" / "b").is_dir()


def test_a_file_gets_another_name_in_its_directory_alone(root: SandboxedDirectory) -> None:
    root.rename("a/b/deep.txt", "other.txt")

    assert root.read("a/b/other.txt", 100) == b"deep"
    for elsewhere in ("../other.txt", "c/other.txt"):
        with pytest.raises(PathNotAllowed):
            root.rename("a/b/other.txt", elsewhere)
    with pytest.raises(PathNotAllowed, match="there is no such file"):
        root.rename("a/b/deep.txt", "gone.txt")


@given(one=st.text(max_size=150), other=st.text(max_size=150))
def test_two_texts_never_share_a_file_name(one: str, other: str) -> None:
    same_file = safe_filename(one).casefold() == safe_filename(other).casefold()

    assert same_file == (one == other)


@given(st.text(max_size=300))
def test_a_stem_is_a_short_and_plain_name(text: str) -> None:
    assert split_relative_path(safe_filename(text)) == (safe_filename(text),)
    assert re.fullmatch(r"[a-z0-9_~-]{1,122}", safe_filename(text))


@pytest.mark.parametrize("text", ["", "CON", "con", "nul", "com1", "lpt9", "A", "a.b", "~", "é"])
def test_a_name_that_a_system_might_read_otherwise_is_written_otherwise(text: str) -> None:
    assert safe_filename(text).startswith("~")


def test_the_name_of_a_long_text_is_not_one_that_a_short_text_has() -> None:
    assert safe_filename("x" * 10_000).startswith("~~")
    assert not safe_filename("~").startswith("~~")


def test_a_plain_name_stays_as_it_is() -> None:
    assert safe_filename("console-1_a") == "console-1_a"
