"""A disk that forgets: what was not synchronised when the power went is gone, or half of it is.

It lies under SQLite as a VFS. All files are in memory; a write is pending until its file is
synchronised.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

Pending = tuple[int, bytes] | int
"""A write at an offset, or a new length."""


class Disk:
    """The files, as the programs see them and as they lie on the disk."""

    def __init__(self) -> None:
        self.seen: dict[str, bytearray] = {}
        self.durable: dict[str, bytearray] = {}
        self.pending: dict[str, list[Pending]] = {}
        self.on_change: Callable[[], object] = lambda: None

    def change(self, name: str, pending: Pending) -> None:
        _apply(self.seen[name], pending)
        self.pending[name].append(pending)
        self.on_change()

    def sync(self, name: str) -> None:
        self.on_change()
        for pending in self.pending[name]:
            _apply(self.durable[name], pending)
        self.pending[name] = []

    def create(self, name: str) -> None:
        if name not in self.seen:
            self.seen[name], self.durable[name] = bytearray(), bytearray()
            self.pending[name] = []

    def delete(self, name: str) -> None:
        for files in (self.seen, self.durable, self.pending):
            files.pop(name, None)

    def after_power_cut(self, luck: random.Random) -> dict[str, bytes]:
        """The files as the next program finds them: of what was pending, any part may be there."""
        image: dict[str, bytes] = {}
        for name, durable in self.durable.items():
            content = bytearray(durable)
            share = luck.choice([0.0, 0.5, 0.9])
            for pending in self.pending[name]:
                if luck.random() < share:
                    _apply(content, pending)
            image[name] = bytes(content)
        return image


class ForgetfulVfs(apsw.VFS):
    """SQLite's way to a `Disk`."""

    def __init__(self, name: str, disk: Disk) -> None:
        super().__init__(name, base="")
        self.disk = disk

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802 - SQLite's name
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self.disk.create(path)
        flags[1] = flags[0]
        return File(path, self.disk)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.disk.delete(filename)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        return pathname in self.disk.seen


class File:
    """One open file. Nobody else opens it, so locks mean nothing."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path, self.disk = path, disk

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return bytes(self.disk.seen[self.path][offset : offset + amount])

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self.disk.change(self.path, (offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self.disk.change(self.path, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.disk.sync(self.path)

    def xFileSize(self) -> int:  # noqa: N802
        return len(self.disk.seen[self.path])

    def xLock(self, level: int) -> None:  # noqa: N802
        pass

    def xUnlock(self, level: int) -> None:  # noqa: N802
        pass

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xFileControl(self, op: int, ptr: int) -> bool:  # noqa: N802
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        return 4096

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        return 0

    def xClose(self) -> None:  # noqa: N802
        pass


def write_image(image: dict[str, bytes], database: str, folder: Path) -> Path:
    """The files of a database, where any program can open them."""
    for name, content in image.items():
        (folder / name.replace(database, "store.db").rpartition("/")[2]).write_bytes(content)
    return folder / "store.db"


def _apply(content: bytearray, pending: Pending) -> None:
    if isinstance(pending, int):
        del content[pending:]
        return
    offset, data = pending
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data
