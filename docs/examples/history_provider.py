"""A history in a program's own database, and a second one beside it for audits."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from agent_context import Message
from agent_context.providers import BaseHistoryProvider, InMemoryHistoryProvider
from agent_context_backends.scripted import ScriptedBackend


class DatabaseHistoryProvider(BaseHistoryProvider):
    def __init__(self, db: Any) -> None:
        super().__init__("db-history", load_messages=True)
        self._db = db

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Message]:
        key = (state or {}).get(self.source_id, {}).get("history_key", session_id or "default")
        rows = await self._db.load_messages(key)
        return [Message.from_dict(row) for row in rows]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not messages:
            return
        if state is not None:
            key = state.setdefault(self.source_id, {}).setdefault(
                "history_key", session_id or "default"
            )
        else:
            key = session_id or "default"
        await self._db.save_messages(key, [m.to_dict() for m in messages])


class Database:
    """Rows of JSON; a real one would not do this on the event loop."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.execute("create table messages (session text, message text)")

    async def load_messages(self, key: str) -> list[dict[str, Any]]:
        rows = self._db.execute(
            "select message from messages where session = ? order by rowid", [key]
        )
        return [json.loads(text) for (text,) in rows]

    async def save_messages(self, key: str, messages: list[dict[str, Any]]) -> None:
        with self._db:
            rows = [(key, json.dumps(message)) for message in messages]
            self._db.executemany("insert into messages values (?, ?)", rows)


async def main() -> None:
    db = Database()
    primary = DatabaseHistoryProvider(db)
    audit = InMemoryHistoryProvider("audit", load_messages=False, store_context_messages=True)
    client = ScriptedBackend(["Noted.", "How about a mushroom risotto?"])
    agent = client.as_agent(context_providers=[primary, audit])

    session = agent.create_session("alice")
    for text in ("I prefer vegetarian food.", "What shall I cook?"):
        print(f"user:  {text}\nmodel: {await agent.run(text, session=session)}")
    await agent.drain(session)

    print(f"\nin the database: {[row['role'] for row in await db.load_messages('alice')]}")
    kept = await audit.get_messages(session.session_id, state=session.state["audit"])
    print(f"in the audit:    {[message.role.value for message in kept]}")
    print(f"sent at last:    {[record.message.text for record in client.requests[1].records]}")


if __name__ == "__main__":
    asyncio.run(main())
