"""Two hosts, one database: the owner of some conversations is stopped under load, and goes on."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from statistics import median

from tests.support.appenders import Appender, Fact

__all__ = ["Failover", "fail_over"]


@dataclass(frozen=True)
class Failover:
    """What the two said."""

    old: list[Fact]
    new: list[Fact]
    takeover: float
    """Seconds from the stop until the last conversation was taken over."""
    activations: list[float]
    """Seconds that each conversation took that was taken over."""

    @property
    def acked(self) -> list[Fact]:
        return [fact for fact in (*self.old, *self.new) if fact["what"] == "acked"]

    def figures(self) -> str:
        refused = sum(fact["what"] == "refused" for fact in self.old)
        return (
            f"{len(self.activations)} conversations taken over within {self.takeover:.2f} s,"
            f" activated in {1000 * median(self.activations):.1f} ms (at most"
            f" {1000 * max(self.activations):.1f}), {refused} asks refused"
        )


def fail_over(dsn: str, schema: str, *, lease: float, names: list[str]) -> Failover:
    program = "tests.support.owner"
    with (
        Appender(dsn, schema, lease, names, program=program) as old,
        Appender(dsn, schema, lease, names, program=program) as new,
    ):
        old.go()
        old.until("got", len(names))
        old.until("acked", 50 * len(names))
        old.signal(signal.SIGSTOP)
        stopped = time.time()
        new.go()
        taken = new.until("got", len(names))
        new.until("acked", 5 * len(names))
        old.signal(signal.SIGCONT)
        old.until("refused", len(names))
        new.until("acked", len(new.all("acked")) + len(names))
        old.kill()
        new.kill()
    takeover = max(fact["at"] for fact in taken) - stopped
    return Failover(old.said, new.said, takeover, [fact["took"] for fact in taken])
