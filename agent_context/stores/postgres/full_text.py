"""Finding words in one conversation.

What was said is copied into a table of its own when somebody searches: writing costs nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agent_context.stores.postgres.connection_pool import ConnectionPool
from agent_context.stores.postgres.queries import entries
from agent_context.stores.store import Entry
from agent_context.stores.text_search import extract_text, query_words

__all__ = ["search"]

PAGE: Final = 1000
LONGEST: Final = 100_000
"""Characters of one entry that words are ranked by: a vector takes a megabyte at most."""
MOST: Final = 32
"""Words of a query that are looked for."""

_BEHIND: Final = "select coalesce(max(seq), 0) from {s}.words where conv_id = %(id)s"
_ADD: Final = """
insert into {s}.words (conv_id, seq, text, vector)
select %(id)s, d.seq, d.text, to_tsvector('simple', left(d.text, %(longest)s))
from unnest(%(seqs)s::bigint[], %(texts)s::text[]) as d (seq, text)
on conflict do nothing
"""
# `ilike` finds parts of words and scripts without spaces; whole words only rank higher.
_SEARCH: Final = """
select e.seq, e.kind, e.payload, e.at, e.key
from {s}.words w join {s}.event e using (conv_id, seq)
where w.conv_id = %(id)s and w.text ilike any (%(patterns)s::text[])
order by
    (select count(*) from unnest(%(patterns)s::text[]) p (word) where w.text ilike p.word) desc,
    ts_rank(w.vector, websearch_to_tsquery('simple', %(query)s)) desc,
    w.seq desc
limit %(limit)s
"""


def search(
    database: ConnectionPool, conversation_id: str, text: str, *, limit: int
) -> Sequence[Entry]:
    """As `Store.search` says."""
    words = query_words(text)[:MOST]
    _catch_up(database, conversation_id)
    params = {
        "id": conversation_id,
        "patterns": [f"%{_escape(word)}%" for word in words],
        "query": " or ".join(words),
        "limit": max(limit, 0),
    }
    return [Entry(*row) for row in database.rows(_SEARCH, params)]


def _catch_up(database: ConnectionPool, conversation_id: str) -> None:
    [(after,)] = database.rows(_BEHIND, {"id": conversation_id})
    while found := entries(database, conversation_id, after=after, upto=None, limit=PAGE):
        _add(database, conversation_id, found)
        after = found[-1].seq


def _add(database: ConnectionPool, conversation_id: str, found: Sequence[Entry]) -> None:
    params = {
        "id": conversation_id,
        "longest": LONGEST,
        "seqs": [entry.seq for entry in found],
        "texts": [extract_text(entry.payload).replace("\0", " ") for entry in found],
    }
    database.run(lambda connection: connection.execute(database.sql(_ADD), params))


def _escape(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
