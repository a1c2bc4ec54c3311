"""Full text search: an index that is filled when somebody searches; writing costs nothing.

SQLite's own tokenizers know neither words without spaces between them nor parts of identifiers. So
the words are cut here: identifiers whole and in parts, other scripts in pairs of neighbours.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from agent_context.stores.sqlite.connection import SqliteFile
from agent_context.stores.sqlite.queries import ENTRY, Row
from agent_context.stores.store import Entry
from agent_context.stores.text_search import extract_text, query_words

__all__ = ["forget_index", "has_index", "search"]

AT_ONCE: Final = 200
"""Entries indexed in one transaction: writers wait for it."""

LONGEST: Final = 200
MOST: Final = 100
"""Bounds of a query: characters of a word, and words."""

# Scripts that put no spaces between words: Thai to Khmer, kana, ideographs, Hangul.
UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
WORD: Final = re.compile(r"[^\W_]+")
PART: Final = re.compile(r"[^\W\d_a-z]+(?![a-z])|[^\W\d_a-z]?[a-z]+|\d+|[^\W_]")

TABLES: Final = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS word USING fts5(conv, words, content='')",
    "CREATE TABLE IF NOT EXISTS indexed(conv INTEGER PRIMARY KEY, seq INTEGER NOT NULL)",
)


def has_index(connection: sqlite3.Connection) -> bool:
    """Whether this SQLite can keep an index."""
    try:
        connection.execute("SELECT fts5_source_id()").fetchone()
    except sqlite3.OperationalError:
        return False
    return True


def search(file: SqliteFile, row: Row, text: str, *, limit: int) -> Sequence[Entry]:
    """Entries up to the row's head that hold words of `text`, the best first."""
    query = _query(row.num, text)
    if query is None:
        return ()
    while _index_batch(file, row):
        pass
    with file.read_transaction() as connection:
        if not _is_there(connection):
            return ()
        found = connection.execute(
            f"SELECT {ENTRY} FROM word JOIN event ON event.pos = word.rowid"  # noqa: S608 - ours
            " WHERE word MATCH ? AND event.conv = ? AND seq <= ?"
            " ORDER BY bm25(word, 0.0, 1.0), seq DESC LIMIT ?",
            (query, row.num, row.head, limit),
        )
        return tuple(Entry(*each) for each in found)


def forget_index(file: SqliteFile) -> None:
    """Empty the index: it knows words of what was removed. The next search fills it anew."""
    with file.write_transaction() as connection:
        if _is_there(connection):
            connection.execute("INSERT INTO word(word) VALUES('delete-all')")
            connection.execute("DELETE FROM indexed")


def _index_batch(file: SqliteFile, row: Row) -> bool:
    """Index the next entries of the conversation; False if there are none."""
    with file.read_transaction() as connection:
        after = _index_entries(connection, row)
        found = connection.execute(
            "SELECT pos, seq, payload FROM event WHERE conv = ? AND seq > ? AND seq <= ?"
            " ORDER BY seq LIMIT ?",
            (row.num, after, row.head, AT_ONCE),
        ).fetchall()
    if not found:
        return False
    # Cut before the transaction: meanwhile others can write.
    words = [
        (position, _conversation(row.num), " ".join(_cut(extract_text(payload))))
        for position, _, payload in found
    ]
    with file.write_transaction() as connection:
        for table in TABLES:
            connection.execute(table)
        # Another search may have done the same.
        if _index_entries(connection, row) == after:
            connection.executemany("INSERT INTO word(rowid, conv, words) VALUES(?, ?, ?)", words)
            connection.execute(
                "INSERT OR REPLACE INTO indexed(conv, seq) VALUES(?, ?)", (row.num, found[-1][1])
            )
    return len(found) == AT_ONCE


def _index_entries(connection: sqlite3.Connection, row: Row) -> int:
    """Up to which entry the conversation is indexed."""
    if not _is_there(connection):
        return 0
    found = connection.execute("SELECT seq FROM indexed WHERE conv = ?", (row.num,)).fetchone()
    return found[0] if found else 0


def _is_there(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'indexed'").fetchone()
    return found is not None


def _conversation(num: int) -> str:
    """A word that all entries of a conversation have, and that only `conv:` finds."""
    return f"c{num}"


def _query(num: int, text: str) -> str | None:
    """The query in FTS5's language, each word quoted; None if there is nothing to look for."""
    terms = [term for word in query_words(text)[:MOST] for term in _terms(word[:LONGEST])]
    if not terms:
        return None
    return f'conv : "{_conversation(num)}" AND words : ({" OR ".join(terms)})'


def _terms(word: str) -> Iterator[str]:
    for part in WORD.findall(word):
        for unspaced, piece in _pieces(part):
            if unspaced and len(piece) > 1:
                # Neighbours in the index too: together they are the whole.
                yield f'"{" ".join(map("".join, pairwise(piece)))}"'
            else:
                yield f'"{piece}"*'


def _cut(text: str) -> Iterator[str]:
    """The words of a text as they are indexed."""
    for part in WORD.findall(text):
        for unspaced, piece in _pieces(part):
            if unspaced:
                yield from (piece[start : start + 2] for start in range(len(piece)))
                continue
            yield piece.lower()
            parts = PART.findall(piece)
            if len(parts) > 1:
                yield from map(str.lower, parts)


def _pieces(part: str) -> Iterator[tuple[bool, str]]:
    """The part in stretches, each with whether its script has no spaces."""
    end = 0
    for found in UNSPACED.finditer(part):
        if found.start() > end:
            yield False, part[end : found.start()]
        yield True, found[0]
        end = found.end()
    if end < len(part):
        yield False, part[end:]
