"""Files of a workspace, as a model lists, reads, searches, writes and edits them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final

from msgspec import Struct

from agent_context._sandbox_fs import FileEntry, SandboxedDirectory
from agent_context.errors import PathNotAllowed, ToolError
from agent_context.tools import ToolContext

__all__ = ["FileLimits", "PathScope", "WorkspaceFiles"]

_SNIFFED = 8_192
"""So many bytes from the beginning of a text hold no NUL."""
_LONGEST_LINE = 500
_BOM: Final = "\N{BYTE ORDER MARK}"


class PathScope(StrEnum):
    """Where a path leads."""

    WORKSPACE = "workspace"
    OUTSIDE = "outside_workspace"


class FileLimits(Struct, frozen=True, kw_only=True):
    """What one call may take."""

    bytes: int = 2_000_000
    """Of a file that is read, searched or written."""
    lines: int = 2_000
    """That are read at once."""
    hits: int = 200
    """Lines that a search tells of."""
    names: int = 500
    """Files that a list tells of."""
    files: int = 20_000
    """Files that a search or a list looks at."""
    skipped: tuple[str, ...] = (".git", ".venv", "__pycache__", "node_modules")
    """Names of directories that are neither listed nor searched."""


class WorkspaceFiles:
    """What the tools do. What can't be done raises `ToolError`, and nothing is changed.

    A path outside leads somewhere only with `may_leave`. Links are not followed: a model that may
    leave can name what is at their end.
    """

    def __init__(self, root: SandboxedDirectory, limits: FileLimits, *, may_leave: bool) -> None:
        self.root: Final = root
        self._limits = limits
        self._may_leave = may_leave
        self._writing = Lock()

    def scope(self, path: str) -> PathScope:
        """Where the path leads, by its text alone."""
        inside = self._whole(path).is_relative_to(self.root.path)
        return PathScope.WORKSPACE if inside else PathScope.OUTSIDE

    def list_files(self, context: ToolContext, path: str = ".", pattern: str = "*") -> str:
        """List the files in a directory and below it.

        Args:
            context: Says when to stop.
            path: The directory.
            pattern: Only files whose name or path matches, such as *.py or docs/*.
        """
        found = (f"{name} ({size} bytes)" for name, size in self._find(context, path, pattern))
        return self._describe(path, found, self._limits.names, f"no file there matches {pattern!r}")

    def read_file(self, path: str, first_line: int = 1, lines: int | None = None) -> str:
        """Read a text file, or some of its lines.

        Args:
            path: The file.
            first_line: Where to begin, counted from 1.
            lines: How many lines; all that can be read at once if not given.
        """
        every = _lines(self._text(path))
        most = self._limits.lines
        start = max(first_line, 1) - 1
        shown = every[start : start + min(most if lines is None else max(lines, 0), most)]
        which = f"lines {start + 1} to {start + len(shown)} of {len(every)}"
        return "\n".join((f"{self._head(path)}: {which if shown else 'no such lines'}", *shown))

    def search_files(
        self, context: ToolContext, text: str, path: str = ".", pattern: str = "*"
    ) -> str:
        """Find the lines that hold a text, in a file, or in a directory and below it.

        Args:
            context: Says when to stop.
            text: What to find, as it is; upper and lower case are the same.
            path: The file or directory.
            pattern: Only files whose name or path matches, such as *.py or docs/*.
        """
        if not text:
            raise ToolError("text: it is empty; what should be found?")
        hits = self._hits(context, text.casefold(), path, pattern)
        return self._describe(path, hits, self._limits.hits, f"no line there holds {text!r}")

    def write_file(self, path: str, content: str) -> str:
        """Write a text file. What it held before is gone; directories are made.

        Args:
            path: The file.
            content: All that it should hold.
        """
        with self._writing:
            size = self._put(path, content)
        return f"{self._head(path)}: {size} bytes written"

    def edit_file(self, path: str, old: str, new: str, *, every: bool = False) -> str:
        """Replace a piece of a text file.

        Args:
            path: The file.
            old: The piece as it stands there, with enough around it to be the only one.
            new: What should stand there.
            every: Replace all such pieces, instead of the only one.
        """
        if not old:
            raise ToolError("old: it is empty; which piece should be replaced?")
        with self._writing:
            text = self._text(path)
            pieces = _spellings(text, old)
            count = sum(map(text.count, pieces))
            if not count:
                raise ToolError(f"{path!r} does not hold that piece; read the file again")
            if count > 1 and not every:
                raise ToolError(f"{path!r} holds that piece {count} times; give more around it")
            new = _with_line_ends_of(text, new)
            self._check_size(path, _size_after(text, pieces, new))
            for piece in pieces:
                text = text.replace(piece, new)
            self._put(path, text)
        return f"{self._head(path)}: {count} replaced"

    def _whole(self, path: str) -> Path:
        return Path(os.path.normpath(self.root.path / path))

    def _head(self, path: str) -> str:
        return f"[{self.scope(path)}] {path}"

    def _describe(self, path: str, items: Iterator[str], limit: int, nothing: str) -> str:
        told = list(islice(items, limit))
        if not told:
            return f"{self._head(path)}: {nothing}"
        if next(items, None) is not None:
            told.append(f"[more than these {limit}: narrow it down by path or pattern]")
        return "\n".join((self._head(path), *told))

    def _place(self, path: str) -> tuple[SandboxedDirectory, str]:
        """A root, and the path's name below it; empty for the root itself."""
        whole = self._whole(path)
        if self.scope(path) is PathScope.WORKSPACE:
            name = whole.relative_to(self.root.path).as_posix()
            return self.root, "" if name == "." else name
        if not self._may_leave:
            raise PathNotAllowed(path, "it is outside the workspace, where nothing may be touched")
        return (
            (SandboxedDirectory(whole), "")
            if whole.is_dir()
            else (SandboxedDirectory(whole.parent), whole.name)
        )

    def _text(self, path: str) -> str:
        root, name = self._place(path)
        return _decode(root.read(name, self._limits.bytes), path)

    def _put(self, path: str, content: str) -> int:
        encoded = content.encode("utf-8", "replace")
        self._check_size(path, len(encoded))
        root, name = self._place(path)
        root.write(name, encoded)
        return len(encoded)

    def _check_size(self, path: str, size: int) -> None:
        if size > (most := self._limits.bytes):
            raise PathNotAllowed(path, f"{size} bytes can't be written, only up to {most}")

    def _find(self, context: ToolContext, path: str, pattern: str) -> Iterator[tuple[str, int]]:
        """The files with their sizes. What is outside has an absolute name."""
        root, name = self._place(path)
        for found in self._list(root, name):
            if context.cancelled:
                raise ToolError("the call was stopped")
            shown = found.name if root is self.root else (root.path / found.name).as_posix()
            if fnmatchcase(shown, pattern) or fnmatchcase(Path(shown).name, pattern):
                yield shown, found.size

    def _list(self, root: SandboxedDirectory, name: str) -> Iterator[FileEntry]:
        if name:
            try:
                with root.open(name) as file:
                    size = os.fstat(file.fileno()).st_size
            except PathNotAllowed:
                pass  # no file; perhaps a directory
            else:
                yield FileEntry(name, size)
                return
        limits = self._limits
        yield from root.files(below=name, count=limits.files, skip=limits.skipped.__contains__)

    def _hits(self, context: ToolContext, text: str, path: str, pattern: str) -> Iterator[str]:
        for name, size in self._find(context, path, pattern):
            if size > self._limits.bytes:
                continue
            try:
                lines = _lines(self._text(name))
            except ToolError:
                continue  # no text, or gone by now
            for number, line in enumerate(lines, start=1):
                if text in line.casefold():
                    yield f"{name}:{number}: {line.strip()[:_LONGEST_LINE]}"


def _decode(content: bytes, path: str) -> str:
    if b"\0" in content[:_SNIFFED]:
        raise PathNotAllowed(path, f"it is no text, but {len(content)} bytes of something else")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PathNotAllowed(path, f"it is no text in UTF-8: {error}") from error


def _lines(text: str) -> list[str]:
    """The lines as editors number them."""
    lines = text.removeprefix(_BOM).replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _spellings(text: str, old: str) -> list[str]:
    """A piece as it stands in the text: the model sees one kind of line end, and there are two."""
    unix = old.replace("\r\n", "\n")
    spellings = dict.fromkeys((old, unix, unix.replace("\n", "\r\n")))
    found = [piece for piece in spellings if piece in text]
    if not found and "\r\n" in text and "\n" in unix:  # its lines may end in both ways
        mixed = re.search("\r?\n".join(map(re.escape, unix.split("\n"))), text)
        return [mixed[0]] if mixed else []
    return found


def _with_line_ends_of(text: str, new: str) -> str:
    """What replaces a piece, with the line ends that most lines of the text have."""
    if 2 * text.count("\r\n") <= text.count("\n"):
        return new
    return new.replace("\r\n", "\n").replace("\n", "\r\n")


def _size_after(text: str, pieces: Sequence[str], new: str) -> int:
    """How many bytes the text has when the pieces are replaced."""
    comes = len(new.encode("utf-8", "replace"))
    grows = ((comes - len(p.encode("utf-8", "replace"))) * text.count(p) for p in pieces)
    return len(text.encode("utf-8", "replace")) + sum(grows)
