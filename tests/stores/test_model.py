"""Any course of events, held against a model that keeps plain lists."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent_context.errors import ConversationDeleted, Fenced, UnknownConversation
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import ForkOrigin, Snapshot, Store, Write
from tests.stores.material import entry
from tests.support.examples import examples

NAMES = st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.lists(st.sampled_from(["red", "green", "blue"]), max_size=3)
DRAFTS = st.sampled_from([None, b"", b"first", b"second"])


@dataclass
class Known:
    """What the model knows of one conversation."""

    epoch: int = 1
    entries: list[tuple[int, str]] = field(default_factory=list)
    """Of each its epoch and text."""
    draft: bytes | None = None
    parent: ForkOrigin | None = None
    deleted: bool = False

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.entries]


class Course(RuleBasedStateMachine):
    """Claims, writes, snapshots, forks and deletions in any order, each told to store and model."""

    def __init__(self) -> None:
        super().__init__()
        self.store = self.opened()
        self.known: dict[str, Known] = {}
        self.fed: list[tuple[str, int]] = []
        self.last: Write | None = None

    def opened(self) -> Store:
        return MemoryStore()

    def alive(self, name: str) -> Known | None:
        known = self.known.get(name)
        return None if known is None or known.deleted else known

    @rule(name=NAMES)
    def claim(self, name: str) -> None:
        known = self.known.get(name)
        try:
            claim = self.store.claim(name)
        except ConversationDeleted:
            assert known is not None
            assert known.deleted
            return
        if known is None:
            known = self.known[name] = Known(epoch=0)
        known.epoch += 1
        assert (claim.epoch, claim.head, claim.draft) == (
            known.epoch,
            len(known.texts),
            known.draft,
        )

    @rule(name=NAMES, texts=TEXTS, draft=DRAFTS, head=st.integers(-1, 1), epoch=st.integers(-1, 1))
    def write(
        self, name: str, texts: list[str], draft: bytes | None, head: int, epoch: int
    ) -> None:
        known = self.alive(name) or Known()
        head += len(known.entries)
        entries = tuple(entry(head + number, text) for number, text in enumerate(texts, start=1))
        self.last = Write(
            conversation_id=name,
            epoch=known.epoch + epoch,
            head=head,
            entries=entries,
            draft=draft,
        )
        self.write_the_last_again()

    @precondition(lambda self: self.last is not None)
    @rule()
    def write_the_last_again(self) -> None:
        assert self.last is not None

        (answer,) = self.store.write([self.last])

        if self.takes(self.last):
            assert answer is None
        else:
            assert isinstance(answer, Fenced)

    def takes(self, write: Write) -> bool:
        """Whether the write is to be kept, or is; the model keeps it too."""
        known = self.alive(write.conversation_id)
        if known is None or known.epoch != write.epoch:
            return False
        there = known.entries[max(write.head, 0) :]
        new = [(write.epoch, orjson.loads(each.payload)["content"]) for each in write.entries]
        if write.head != len(known.entries):
            repeated = write.head >= 0 and there[: len(new)] == new
            return write.head < len(known.entries) and (repeated or not new)
        known.entries += new
        known.draft = write.draft if isinstance(write.draft, bytes) else None
        self.fed += [(write.conversation_id, each.seq) for each in write.entries]
        return True

    @rule(name=NAMES, back=st.integers(0, 3))
    def save_snapshot(self, name: str, back: int) -> None:
        known = self.alive(name)
        if known is None or len(known.texts) < back:
            return
        seq = len(known.texts) - back
        self.store.save_snapshot(
            name, known.epoch, Snapshot(seq, 1, orjson.dumps(known.texts[:seq]))
        )

    @rule(name=NAMES, parent=NAMES, back=st.integers(0, 2))
    def fork(self, name: str, parent: str, back: int) -> None:
        above = self.alive(parent)
        if name in self.known or above is None:
            return
        point = ForkOrigin(parent, len(above.texts) - back)
        try:
            self.store.claim(name, parent=point)
        except UnknownConversation:
            assert point.seq < 0
        else:
            self.known[name] = Known(parent=point)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        known = self.alive(name)
        assert self.store.delete(name) is (known is not None)
        if known:
            known.deleted = True

    @rule()
    def vacuum(self) -> None:
        self.store.vacuum()

    @invariant()
    def logs_are_as_known(self) -> None:
        for name, known in self.known.items():
            if not known.deleted:
                assert self.loaded(name, None) == known.texts
                assert (about := self.store.info(name)) is not None
                assert (about.head, about.parent) == (len(known.texts), known.parent)

    @invariant()
    def what_forks_began_with_can_be_had(self) -> None:
        for known in self.known.values():
            parent = None if known.deleted else known.parent
            while parent is not None:
                above = self.known[parent.id]
                assert self.loaded(parent.id, parent.seq) == above.texts[: parent.seq]
                parent = above.parent

    @invariant()
    def the_feed_is_in_order(self) -> None:
        fed = [(each.conversation_id, each.entry.seq) for each in self.store.feed(limit=100_000)]

        assert fed == [each for each in self.fed if self.alive(each[0])]

    @invariant()
    def searching_finds_what_is_there(self) -> None:
        for name, known in self.known.items():
            if not known.deleted:
                found = [each.seq for each in self.store.search(name, "green", limit=1000)]
                there = [seq for seq, text in enumerate(known.texts, start=1) if text == "green"]
                assert sorted(found) == there

    def loaded(self, name: str, upto: int | None) -> list[str]:
        log = self.store.load(name, upto=upto)
        base: list[str] = orjson.loads(log.snapshot.payload) if log.snapshot else []
        return base + [orjson.loads(each.payload)["content"] for each in log.entries]

    def teardown(self) -> None:
        self.store.close()


class CourseOfFile(Course):
    """The same with a file, which is closed and opened again now and then."""

    def opened(self) -> Store:
        self.folder = Path(tempfile.mkdtemp())
        return SqliteStore(self.folder / "store.db")

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.folder / "store.db")

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


TestMemory = Course.TestCase
TestMemory.settings = examples(stateful_step_count=40)

TestSqlite = CourseOfFile.TestCase
TestSqlite.settings = examples(0.25, stateful_step_count=40)
