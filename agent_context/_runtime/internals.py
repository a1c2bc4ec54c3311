"""What pykka's documentation does not name and this runtime uses all the same."""

# Unchanged since pykka 4.0. `scripts/pykka-suite` runs pykka's own tests on this runtime.
from pykka import messages
from pykka._envelope import Envelope  # pyright: ignore[reportPrivateUsage]

__all__ = ["ActorStop", "Envelope"]

ActorStop: type[object] = messages._ActorStop  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
