"""What was acknowledged to users of a host is still there after kill -9, once, and usable."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent_context import Append, Host, Message, Messages, Send
from agent_context._actor.replay import messages_in_entry
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from tests.host.busy import ASKS, KEYLESS, LEASE, open_store
from tests.host.model import Echo, illegal, model, untidy
from tests.host.steps import SAID

KILLS = int(os.environ.get("AGENT_CONTEXT_SOAK", "10"))

logger = logging.getLogger(__name__)


@dataclass
class Told:
    """What the killed processes said: what was asked of whom, and what was answered."""

    begun: dict[str, str] = field(default_factory=dict[str, str])
    acked: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    def take(self, fact: dict[str, Any]) -> None:
        if "begun" in fact:
            self.begun[fact["begun"]] = fact["id"]
        else:
            self.acked[fact["acked"]] = fact["id"], fact["answer"]


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * KILLS)
def test_kill_9_on_sqlite_loses_and_doubles_nothing(tmp_path: Path) -> None:
    trials("sqlite", str(tmp_path / "talks.db"))


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(120 + 15 * KILLS)
def test_kill_9_on_postgres_loses_and_doubles_nothing() -> None:
    psycopg = pytest.importorskip("psycopg")
    from tests.support.postgres import new_schema, place

    with psycopg.connect(place(), autocommit=True) as admin, new_schema(admin) as schema:
        trials("postgres", place(), schema)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["send", "stream"])
def test_a_turn_may_die_at_every_step_and_the_talk_goes_on(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.host.steps", how, str(tmp_path)]
    steps = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300).stdout)
    ways = {after_death(tmp_path / f"{step}.db") for step in range(1, steps)}
    logger.info("%s: %d steps, %d ways to end", how, steps, len(ways))
    assert steps > 20
    # Nothing, what was said before, the question, the calls with 0, 1 or 2 results, the answer.
    assert len(ways) >= 7


def after_death(path: Path) -> tuple[str, ...]:
    """What was left of the talk; it goes on by itself and when the turn is asked for again."""
    backend = model()
    with Host(SqliteStore(path), backend) as host:
        ref = host.get("c")
        left = tuple(message.text for message in ref.ask(Messages()))
        kinds = [told.kind for told in host.feed()]
        assert (SAID in left) == ("re: x-1" in left or "turn_lost" in kinds), left
        assert left.count(SAID) <= 1
        assert ref.ask(Send(messages=[Message.user("go on")])).message.text == "re: go on"
        assert untidy(backend.requests[-1]) == []
        before = ref.ask(Append(Message.user("before"), key="before"))
        assert ref.ask(Append(Message.user("before"), key="before")) == before
        answer = ref.ask(Send(messages=[Message.user(SAID)], loop=Echo(), key="turn"))
        assert answer.message.text == "re: x-1"
        said = [message.text for message in ref.ask(Messages()) if not message.interrupted]
        assert said.count("before") == said.count("re: x-1") == 1
        assert all(untidy(request) == [] for request in backend.requests)
    return left


def trials(*place: str) -> None:
    told = Told()
    luck = random.Random(1)
    for trial in range(KILLS):
        kill_one(told, luck, str(trial), *place)
        with reopened(*place) as host:
            whole(host.store, told)
            asked_again(host, told, luck)
            everybody = list(names(host.store))
            last = trial == KILLS - 1
            usable(host, everybody if last else luck.sample(everybody, min(20, len(everybody))))
    assert len(told.acked) > 20 * KILLS
    logger.info("%d kills, %d acknowledged, none lost or doubled", KILLS, len(told.acked))


def kill_one(told: Told, luck: random.Random, *arguments: str) -> None:
    """Let a process work until some replies have come, and kill it a little later."""
    command = [sys.executable, "-m", "tests.host.busy", *arguments]
    left = luck.randrange(1, 150)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith(b"\n"):
                told.take(json.loads(line))
            left -= b"acked" in line
            if left == 0:
                time.sleep(luck.choice((0, 0.01 * luck.random())))  # so that it may be anywhere
                process.kill()
    assert left <= 0, "it ended by itself"


@contextmanager
def reopened(*place: str) -> Generator[Host]:
    if place[0] == "postgres":
        time.sleep(LEASE)  # what the killed process owned is its own for so long
    with Host(open_store(*place), model()) as host:
        yield host


def whole(store: Store, told: Told) -> None:
    """Every log has all its entries, and each acknowledged message once."""
    logs: dict[str, Counter[str]] = {}
    for name in names(store):
        entries = store.entries(name, limit=1_000_000)
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        logs[name] = Counter(
            record.message.text for entry in entries for record in messages_in_entry(entry)
        )
    lost = [said for said, (name, _) in told.acked.items() if logs[name][said] != 1]
    assert lost == []
    answered = [said for said in told.acked if said.split()[0] in {"send", "stream"}]
    assert [said for said in answered if logs[told.acked[said][0]][f"re: {said}"] != 1] == []


def names(store: Store) -> Iterator[str]:
    after = ""
    while page := store.conversations(after=after):
        yield from (about.id for about in page)
        after = page[-1].id


def asked_again(host: Host, told: Told, luck: random.Random) -> None:
    """What is asked again with its key is answered as before, or done for the first time."""
    keyed = sorted(said for said in told.acked if not said.startswith(KEYLESS))
    for said in luck.sample(keyed, min(20, len(keyed))):
        name, before = told.acked[said]
        assert ASKS[said.split()[0]](host.get(name), said) == before
    for said in told.begun.keys() - told.acked.keys():
        name, how = told.begun.pop(said), said.split()[0]
        if how == KEYLESS:
            continue
        answer = ASKS[how](host.get(name), said)
        if how in {"append", "extend"}:
            # A turn that was cut short has left what it said, and is begun anew.
            told.acked[said] = name, answer


def usable(host: Host, conversations: Sequence[str]) -> None:
    """Each of them answers, and nothing illegal goes out."""
    backend = host._registry._setup_of("").backend
    for name in conversations:
        ref = host.get(name)
        assert ref.ask(Send(messages=[Message.user("are you there?")])).message.text == (
            "re: are you there?"
        )
        assert illegal(backend.requests[-1]) == []  # type: ignore[attr-defined]
        assert ref.ask(Messages())[-1].text == "re: are you there?"
