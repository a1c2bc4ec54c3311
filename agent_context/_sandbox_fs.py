"""File access that is confined to one directory.

Paths are opened segment by segment from a directory descriptor and links are never followed, so a
link or directory swapped in between check and use has no effect.
Where the system can't open names from an open directory (Windows), each segment is looked at first.
A hard link is a file like any other.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
import secrets
import stat
import string
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Self

from agent_context.errors import PathNotAllowed

__all__ = ["FileEntry", "SandboxedDirectory", "safe_filename", "split_relative_path"]

_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_DIRECTORY = os.O_RDONLY | _SAFE | getattr(os, "O_DIRECTORY", 0)
_READ = os.O_RDONLY | _SAFE | getattr(os, "O_NONBLOCK", 0)  # or the open of a pipe waits for ever
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE

# Whether names can be opened from an open directory.
_WALKS = os.open in os.supports_dir_fd and os.scandir in os.supports_fd


_LONGEST: Final = 120
_PLAIN: Final = frozenset(string.ascii_lowercase + string.digits + "-_")
_RESERVED: Final = re.compile(r"con|prn|aux|nul|(com|lpt)\d")
"""Names that mean a device on Windows, whatever their ending."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A regular file below a root."""

    name: str
    """Relative to the root, with `/` between the segments."""
    size: int
    """In bytes, when it was seen."""


def split_relative_path(name: str) -> tuple[str, ...]:
    """The segments of a path. Raises `PathNotAllowed` for one that could leave its root."""
    if "\0" in name:
        raise PathNotAllowed(name, "a name has no NUL character")
    if name.startswith(("/", "\\")) or Path(name).is_absolute():
        raise PathNotAllowed(name, "a relative path is expected, not an absolute one")
    parts = tuple(part for part in name.split("/") if part not in {"", "."})
    if not parts:
        raise PathNotAllowed(name, "the name of a file is expected")
    if ".." in parts:
        raise PathNotAllowed(name, "`..` is not taken: a path stays below its directory")
    if os.sep == "\\" and any(set(part) & {"\\", ":"} for part in parts):
        raise PathNotAllowed(name, "segments are parted by `/`, and hold no `:`")
    return parts


def safe_filename(id: str) -> str:
    """A file name for any text, without an ending; two texts never have the same one.

    Not even where the file system ignores case or normalises, and none that a system keeps for
    itself. A text that is a plain lower-case name stays as it is.
    """
    if 0 < len(id) <= _LONGEST and _PLAIN.issuperset(id) and not _RESERVED.fullmatch(id):
        return id
    raw = id.encode("utf-8", "surrogatepass")
    written = base64.b32encode(raw).decode("ascii").rstrip("=").lower()
    # The second tilde parts them: base32 has none.
    return f"~{written}" if len(written) <= _LONGEST else f"~~{hashlib.sha256(raw).hexdigest()}"


class SandboxedDirectory:
    """A directory whose files can be listed, read and written, and nothing outside it.

    Links below it are neither followed nor listed; its own path may have some. Everything that
    can't be done raises `PathNotAllowed` with the name and the reason.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Final = Path(path).resolve()
        """Absolute, and without links."""
        if not self.path.is_dir():
            raise PathNotAllowed(os.fspath(path), "there is no such directory")

    def open(self, name: str) -> BinaryIO:
        """A regular file, open for reading."""
        *above, last = split_relative_path(name)
        with _refusals(name), self._directory(above) as directory:
            file = directory.open(last, _READ)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                raise PathNotAllowed(name, "it is not a regular file")
            return os.fdopen(file, "rb")

    def read(self, name: str, limit: int) -> bytes:
        """All that a regular file holds; one of more than `limit` bytes is refused."""
        with _refusals(name), self.open(name) as file:
            content = file.read(limit + 1)
            if len(content) <= limit:
                return content
            size = os.fstat(file.fileno()).st_size
        raise PathNotAllowed(name, f"it has {size} bytes, of which at most {limit} can be read")

    def write(self, name: str, content: bytes) -> None:
        """Put `content` in the place of a file, all of it or nothing, and make its directories.

        A file that was there keeps its mode; what is there and is no regular file stays.
        """
        *above, last = split_relative_path(name)
        with _refusals(name), self._directory(above, make=True) as directory:
            directory.replace(last, content)

    def remove(self, name: str) -> bool:
        """Remove a file, or the link that has its name; False if there is none."""
        *above, last = split_relative_path(name)
        try:
            with _refusals(name), self._directory(above) as directory:
                directory.remove(last)
        except PathNotAllowed as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        return True

    def rename(self, name: str, other: str) -> None:
        """Give a file another name in its directory, in the place of what has that one."""
        *above, last = split_relative_path(name)
        *elsewhere, new = split_relative_path(other)
        if elsewhere:
            raise PathNotAllowed(other, "a name in the same directory is expected")
        with _refusals(name), self._directory(above) as directory:
            directory.rename(last, new)

    def files(
        self,
        *,
        below: str = "",
        depth: int = 16,
        count: int = 10_000,
        skip: Callable[[str], bool] = lambda name: False,  # noqa: ARG005 - nothing is skipped
    ) -> Iterator[FileEntry]:
        """Regular files in a stable order, those of a directory before those below it.

        At most `count` of them, from the directory `below` or the root, and from at most `depth`
        directories down: 0 is that one alone. Names are relative to the root all the same.
        Directories that can't be read are passed over, and whatever has a name to `skip`.
        """
        names = list(split_relative_path(below)) if below else []
        prefix = "".join(f"{name}/" for name in names)
        with _refusals(below or str(self.path)), self._directory(names) as top:
            for number, found in enumerate(_list_directory(top, prefix, depth, skip)):
                if number >= count:
                    return
                yield found

    @contextmanager
    def _directory(self, names: list[str], *, make: bool = False) -> Generator[_Directory]:
        directory = _Directory.at(self.path)
        try:
            for name in names:
                with directory as above:
                    directory = above.enter(name, make=make)
            yield directory
        finally:
            directory.close()


class _Directory:
    """An open directory; without a descriptor, where the system has none, its path."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def at(cls, path: Path) -> Self:
        return cls(path, os.open(path, _DIRECTORY) if _WALKS else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def open(self, name: str, flags: int) -> int:
        if self.descriptor is None:
            _refuse_link(self.path / name)
        return os.open(self._check_name(name), flags, 0o666, dir_fd=self.descriptor)

    def enter(self, name: str, *, make: bool = False) -> Self:
        if make:
            with suppress(FileExistsError):
                os.mkdir(self._check_name(name), dir_fd=self.descriptor)
        if self.descriptor is not None:
            return type(self)(self.path / name, self.open(name, _DIRECTORY))
        _refuse_link(self.path / name)
        return type(self)(self.path / name, None)

    def scan(self) -> list[os.DirEntry[str]]:
        with os.scandir(self.path if self.descriptor is None else self.descriptor) as entries:
            return sorted(entries, key=lambda entry: entry.name)

    def replace(self, name: str, content: bytes) -> None:
        draft, place = f".{secrets.token_hex(8)}.tmp", self.descriptor
        try:
            self._fill(draft, content, self._mode(name))
            self.rename(draft, name)
        except BaseException:
            with suppress(OSError):
                os.unlink(self._check_name(draft), dir_fd=place)
            raise

    def remove(self, name: str) -> None:
        os.unlink(self._check_name(name), dir_fd=self.descriptor)
        self._sync()

    def rename(self, name: str, other: str) -> None:
        place = self.descriptor
        os.replace(
            self._check_name(name), self._check_name(other), src_dir_fd=place, dst_dir_fd=place
        )
        self._sync()

    def _sync(self) -> None:
        if self.descriptor is not None:
            os.fsync(self.descriptor)

    def _fill(self, name: str, content: bytes, mode: int | None) -> None:
        with os.fdopen(self.open(name, _CREATE), "wb") as file:
            if mode is not None and sys.platform != "win32":
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def _mode(self, name: str) -> int | None:
        """Of the file that is there, if one is."""
        try:
            found = os.lstat(self._check_name(name), dir_fd=self.descriptor)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise PathNotAllowed(name, "there is something that is not a regular file")
        return stat.S_IMODE(found.st_mode) & 0o777

    def _check_name(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)


def _list_directory(
    directory: _Directory, prefix: str, depth: int, skip: Callable[[str], bool]
) -> Iterator[FileEntry]:
    below: list[str] = []
    for entry in directory.scan():
        if skip(entry.name):
            continue
        with suppress(OSError):  # it may be gone by now
            if entry.is_file(follow_symlinks=False):
                yield FileEntry(prefix + entry.name, entry.stat(follow_symlinks=False).st_size)
            elif entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
    for name in below if depth else ():
        with suppress(OSError, PathNotAllowed), directory.enter(name) as child:
            yield from _list_directory(child, f"{prefix}{name}/", depth - 1, skip)


def _refuse_link(path: Path) -> None:
    if path.resolve() != path.parent.resolve() / path.name:
        raise PathNotAllowed(str(path), "a link is not followed")


_REASONS = {
    errno.ENOENT: "there is no such file",
    errno.ELOOP: "a link is not followed",
    errno.ENOTDIR: "a part of it is a link, or not a directory",
    errno.EISDIR: "it is a directory",
    errno.ENXIO: "it is not a regular file",
}


@contextmanager
def _refusals(name: str) -> Generator[None]:
    """Says of whatever the system refuses which name it was, and why."""
    try:
        yield
    except OSError as error:
        why = _REASONS.get(error.errno or 0) or os.strerror(error.errno or 0)
        raise PathNotAllowed(name, why) from error
    except ValueError as error:  # of a name that the file system can't encode
        raise PathNotAllowed(name, str(error)) from error
