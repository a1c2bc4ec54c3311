"""Who owns a conversation: the epoch keeps others out, the lease decides who may come in."""

from __future__ import annotations

from typing import Final

from agent_context.errors import OwnedElsewhere
from agent_context.stores.fence import deleted, gone, unknown
from agent_context.stores.postgres.database import Connection, Database, fetched
from agent_context.stores.postgres.reading import loaded
from agent_context.stores.store import Claim, Parent

__all__ = ["claim", "release"]

_CLAIM: Final = """
insert into {s}.conversation as c (id, owner, epoch, parent_id, parent_seq)
values (%(id)s, %(me)s, 1, %(parent)s, %(parent_seq)s)
on conflict (id) do update set owner = excluded.owner, epoch = c.epoch + 1
where not c.deleted and (c.owner is null or c.owner = excluded.owner or not exists (
    select from {s}.node n where n.id = c.owner and n.lease_until > clock_timestamp()
))
returning epoch, head, draft
"""
_OWNER: Final = "select owner, deleted from {s}.conversation where id = %(id)s"
# The lock holds off a vacuum, which might take away what the fork is to begin from.
_PARENT: Final = "select head from {s}.conversation where id = %(id)s and not deleted for key share"
_RELEASE: Final = """
update {s}.conversation set owner = null
where id = %(id)s and epoch = %(epoch)s and owner = %(me)s
returning id
"""


def claim(database: Database, conversation_id: str, *, me: str, parent: Parent | None) -> Claim:
    """As `Store.claim` says, for the node `me`."""
    return database.run(
        lambda connection: _claim(database, connection, conversation_id, me=me, parent=parent)
    )


def release(database: Database, conversation_id: str, epoch: int, *, me: str) -> None:
    """As `Store.release` says, for the node `me`."""
    params = {"id": conversation_id, "epoch": epoch, "me": me}
    database.rows(_RELEASE, params)


def _claim(
    database: Database,
    connection: Connection,
    conversation_id: str,
    *,
    me: str,
    parent: Parent | None,
) -> Claim:
    params = {
        "id": conversation_id,
        "me": me,
        "parent": parent and parent.id,
        "parent_seq": parent and parent.seq,
    }
    if parent is None:
        # A statement by itself: whoever is stopped now leaves no lock behind.
        claimed = fetched(connection, database.sql(_CLAIM), params)
    else:
        with connection.transaction():
            if not fetched(connection, database.sql(_OWNER), params):
                _check(database, connection, parent)
            claimed = fetched(connection, database.sql(_CLAIM), params)
    for epoch, head, draft in claimed:
        return Claim(epoch=epoch, head=head, draft=draft)
    [(owner, is_deleted)] = fetched(connection, database.sql(_OWNER), params)
    if is_deleted:
        raise deleted(conversation_id)
    raise OwnedElsewhere(conversation_id, owner or "a node that has just released it")


def _check(database: Database, connection: Connection, parent: Parent) -> None:
    """Raise `UnknownConversation` for a parent that can't be had as it was then."""
    found = fetched(connection, database.sql(_PARENT), {"id": parent.id})
    if not found:
        raise unknown(parent.id)
    if not 0 <= parent.seq <= found[0][0]:
        raise gone(parent)
    loaded(database, connection, parent.id, parent.seq)
