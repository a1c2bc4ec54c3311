"""`context-actor import`: what other programs kept, as conversations of the store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
import typer
from msgspec import Struct

from agent_context.cli.conversations import opened
from agent_context.cli.output import say, show_json
from agent_context.errors import ImportFailed, InvalidOptions
from agent_context.host import Host
from agent_context.imports import Format, ImportedConversation, read
from agent_context.messages import Message, new_id
from agent_context.protocol import Extend, FromJsonl, IsEmpty

__all__ = ["import_files"]

_PATIENT = 600.0


class _Arrived(Struct, frozen=True):
    """What became of one conversation."""

    id: str
    messages: int
    skipped: bool = False
    """It was there already."""


def import_files(
    store: str | None,
    files: list[Path],
    form: str | None,
    name: str | None,
    *,
    branches: bool,
    as_json: bool,
) -> None:
    """Store every conversation of the files; one that is there already is left as it is."""
    with opened(store, create=True) as host:
        wanted = _format(form)
        if name is not None and len(files) > 1:
            raise InvalidOptions("--id names the conversation of one file")
        arrived: list[_Arrived] = []
        broken = 0
        for file in files:
            if wanted in {None, Format.JSONL} and _is_own(file):
                arrived.append(_load(host, file, name))
                continue
            result = read(file, wanted)
            for rejected in result.quarantined:
                say(f"{file}: {rejected.where}: {rejected.why}")
            broken += len(result.quarantined)
            found = list(_with_ids(result.conversations, name, branches=branches))
            arrived.extend(_keep(host, found))
        _report(arrived, broken, as_json=as_json)


def _format(form: str | None) -> Format | None:
    try:
        return None if form is None else Format(form)
    except ValueError:
        raise InvalidOptions(f"format: one of {', '.join(Format)}, not {form!r}") from None


def _is_own(file: Path) -> bool:
    """Whether `context-actor export` wrote it: then it says which zone a message is of."""
    try:
        with file.open("rb") as opened_file:
            first = opened_file.readline(4096)
        header = orjson.loads(first)
    except OSError as error:
        raise ImportFailed(0, f"{file}: {error.strerror}") from error
    except ValueError:
        return False
    return isinstance(header, dict) and "agent_context" in header


def _load(host: Host, file: Path, name: str | None) -> _Arrived:
    key = name or file.stem
    if _is_there(host, key):
        return _Arrived(key, 0, skipped=True)
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ImportFailed(0, f"{file}: not UTF-8: {error.reason}") from error
    return _Arrived(key, host.get(key).ask(FromJsonl(text), timeout=_PATIENT))


def _is_there(host: Host, key: str) -> bool:
    return host.info(key) is not None and not host.get(key).ask(IsEmpty())


def _with_ids(
    conversations: tuple[ImportedConversation, ...], name: str | None, *, branches: bool
) -> Iterator[tuple[str, ImportedConversation, Sequence[Message]]]:
    if name is not None and len(conversations) > 1:
        raise InvalidOptions(f"--id names one conversation; the file has {len(conversations)}")
    for each in conversations:
        key = name or each.id or new_id()
        yield key, each, each.messages
        for number, branch in enumerate(each.branches if branches else (), 1):
            yield f"{key}~{number}", each, branch


def _keep(
    host: Host, found: list[tuple[str, ImportedConversation, Sequence[Message]]]
) -> Iterator[_Arrived]:
    with _progress(len(found)) as advance:
        for key, imported, messages in found:
            yield _store(host, key, imported, messages)
            advance()


def _store(
    host: Host, key: str, imported: ImportedConversation, messages: Sequence[Message]
) -> _Arrived:
    if _is_there(host, key):
        return _Arrived(key, 0, skipped=True)
    ids = host.get(key).ask(Extend(messages), timeout=_PATIENT)
    created = imported.created.isoformat() if imported.created else None
    known = {"title": imported.title, "created": created, "imported_id": imported.id}
    host.set_metadata(key, {name: value for name, value in known.items() if value})
    return _Arrived(key, len(ids))


@contextmanager
def _progress(total: int) -> Generator[Callable[[], object]]:
    """A bar on a terminal, for more than a few."""
    if total < 5 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("conversations", total=total)
        yield lambda: progress.advance(task)


def _report(arrived: Sequence[_Arrived], broken: int, *, as_json: bool) -> None:
    for each in arrived:
        if as_json:
            show_json({"id": each.id, "messages": each.messages, "skipped": each.skipped})
        elif each.skipped:
            say(f"{each.id}: is there already; --id stores a file under another id")
        else:
            typer.echo(f"{each.id}\t{each.messages}")
    new = sum(not each.skipped for each in arrived)
    say(f"{new} conversations imported, {len(arrived) - new} there already, {broken} pieces broken")
