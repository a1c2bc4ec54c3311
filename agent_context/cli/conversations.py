"""Commands on what is stored: listed, read, searched, exported, branched off, cut back."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import typer

from agent_context._installed_backends import ECHO
from agent_context.backend import ContextBackend
from agent_context.cli.backends import choose, choose_unasked
from agent_context.cli.output import say, show_json, show_table, shown_text, shown_time, to_line
from agent_context.cli.places import failures, open_usual_store
from agent_context.errors import InvalidOptions
from agent_context.host import Host
from agent_context.options import SendOptions
from agent_context.protocol import (
    Compress,
    Fork,
    History,
    HistoryEntry,
    Incremental,
    Len,
    Restore,
    Rewind,
    SearchHistory,
    ToJsonl,
)
from agent_context.ref import ContextRef
from agent_context.stores.store import ConversationInfo

__all__ = [
    "all_conversations",
    "compress",
    "export",
    "fork",
    "list_sessions",
    "opened",
    "rewind",
    "search",
    "show_log",
]

_PAGE = 500
_PATIENT = 600.0
"""Seconds for what handles a whole history."""


@contextmanager
def opened(
    store: str | None,
    backend: ContextBackend | None = None,
    options: SendOptions | None = None,
    *,
    create: bool = False,
) -> Generator[Host]:
    """The host of a store; what goes wrong ends the command."""
    with failures():
        kept = open_usual_store(store, create=create)
        asked = backend or choose_unasked(ECHO).backend
        with Host(kept, asked, options=options) as host:
            yield host


def all_conversations(host: Host) -> Iterator[ConversationInfo]:
    """Those of the store, by id."""
    after = ""
    while page := host.conversations(after=after, limit=_PAGE):
        yield from page
        after = page[-1].id


def list_sessions(store: str | None, limit: int | None, *, as_json: bool) -> None:
    """Print the conversations, the last used first."""
    with opened(store) as host:
        found = sorted(all_conversations(host), key=lambda info: info.updated_at, reverse=True)
        if as_json:
            for info in found[:limit]:
                show_json(_info_json(info))
            return
        rows = [
            (info.id, shown_time(info.updated_at), str(info.head), _title(info))
            for info in found[:limit]
        ]
        show_table(("id", "last change", "changes", "title"), rows)


def _title(info: ConversationInfo) -> str:
    return to_line(str(info.metadata.get("title") or ""), 60)


def _info_json(info: ConversationInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "created_at": info.created_at,
        "updated_at": info.updated_at,
        "changes": info.head,
        "metadata": dict(info.metadata),
        "forked_from": info.parent.id if info.parent else None,
    }


def show_log(store: str | None, conversation: str, last: int | None, *, as_json: bool) -> None:
    """Print all that was ever said, oldest first."""
    with opened(store) as host:
        entries = _history(host.get(conversation, create=False))
        for entry in entries if last is None else deque(entries, maxlen=last):
            _show_entry(entry, None, as_json=as_json)


def _history(ref: ContextRef) -> Iterator[HistoryEntry]:
    cursor: str | None = ""
    while cursor is not None:
        page = ref.ask(History(cursor, _PAGE))
        yield from page.entries
        cursor = page.cursor


def _show_entry(entry: HistoryEntry, limit: int | None, *, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "conversation": entry.conversation_id,
                "seq": entry.seq,
                "time": entry.timestamp,
                "kind": entry.kind,
                "message": entry.message.to_dict(),
            }
        )
        return
    text = shown_text(entry.message)
    said = text if limit is None else to_line(text, limit)
    mark = "" if entry.kind != "compressed" else " (compressed)"
    where = entry.conversation_id if limit is not None else ""
    head = f"{where} {shown_time(entry.timestamp)} {entry.message.role.value}{mark}:".lstrip()
    typer.echo(f"{head} {said}" if limit is not None else f"{head}\n{said}\n")


def search(
    store: str | None, text: str, conversation: str | None, limit: int, *, as_json: bool
) -> None:
    """Print messages that hold the words, of one conversation or of all."""
    with opened(store) as host:
        if conversation is not None:
            ids = [host.get(conversation, create=False).id]
        else:
            ids = [info.id for info in all_conversations(host)]
        left = limit
        for each in ids:
            if left <= 0:
                break
            for entry in host.get(each, create=False).ask(SearchHistory(text, left)):
                _show_entry(entry, 120, as_json=as_json)
                left -= 1
        if left == limit:
            say(f"nothing holds {text!r}")


def export(store: str | None, conversation: str, file: Path | None, *, force: bool) -> None:
    """Write the zones of a conversation as JSON lines."""
    with opened(store) as host:
        ref = host.get(conversation, create=False)
        text = ref.ask(ToJsonl(), timeout=_PATIENT)
        if file is None or str(file) == "-":
            typer.echo(text, nl=not text.endswith("\n"))
            return
        write_new(file, text, force=force)
        say(f"{ref.ask(Len())} messages in {file}")


def write_new(file: Path, text: str, *, force: bool) -> None:
    """Write a whole file or nothing. Raises `InvalidOptions` if it is there, without `force`."""
    if file.exists() and not force:
        raise InvalidOptions(f"{file} is there already; --force replaces it")
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def fork(store: str | None, conversation: str, at: int | None, name: str | None) -> None:
    """Branch a conversation off and print the id of the new one."""
    with opened(store) as host:
        typer.echo(host.get(conversation, create=False).ask(Fork(at, name)).id)


def rewind(
    store: str | None, conversation: str, to: int | None, turns: int | None, *, undo: bool
) -> None:
    """Cut a conversation back, or undo that."""
    with opened(store) as host:
        if sum((to is not None, turns is not None, undo)) != 1:
            raise InvalidOptions("rewind: give --to, --turns or --undo, one of them")
        ref = host.get(conversation, create=False)
        if undo:
            say(f"{len(ref.ask(Restore()))} messages came back")
            return
        removed = ref.ask(Rewind(start_of_turn(ref, turns) if to is None else to))
        say(f"{len(removed)} messages were removed; --undo brings them back")


def start_of_turn(ref: ContextRef, turns: int | None) -> int:
    """Where the last so many turns begin in the incremental zone. Raises `InvalidOptions`."""
    messages = ref.ask(Incremental())
    starts = [index for index, each in enumerate(messages) if each.role.value == "user"]
    wanted = turns or 1
    if wanted > len(starts):
        raise InvalidOptions(f"there are {len(starts)} turns to take back, not {wanted}")
    return starts[-wanted]


def compress(store: str | None, conversation: str, model: str | None, *, as_json: bool) -> None:
    """Make the history smaller, and print what that took away."""
    with failures():
        choice = choose(model)
    with opened(store, choice.backend, choice.options) as host:
        started = time.monotonic()
        report = host.get(conversation, create=False).ask(Compress())
        if as_json:
            show_json({**asdict(report), "changed": report.changed})
        elif not report.changed:
            say("there is nothing to compress")
        else:
            typer.echo(
                f"{report.strategy}: {report.before.total} -> {report.after.total} tokens, "
                f"{len(report.removed_ids)} messages removed, "
                f"{len(report.shortened_ids)} shortened, {time.monotonic() - started:.1f} s"
            )
