"""What a service is made of: its store, its models, who may use it, and its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from agent_context.compression.strategy import Strategy
from agent_context.errors import InvalidOptions
from agent_context.service.catalog import ModelRoute
from agent_context.stores.store import Store

__all__ = ["Bounds", "ServiceConfig"]


class Bounds(Struct, frozen=True, kw_only=True):
    """How much is taken on. What is past a bound is refused, and nothing is changed."""

    body: int = 10 << 20
    """Bytes of a request's body; past that 413."""
    turns: int = 1_000
    """Turns that run or wait, all conversations together; past that 503."""
    turns_per_conversation: int = 64
    """The same of one conversation; past that 429."""
    streams_per_key: int = 100
    """Open event streams of one key; past that 429."""
    requests_per_minute: int | None = None
    """Requests of one key, a quarter of them at once; past that 429. None: any number."""
    live: int = 5_000
    """Conversations that are awake."""


class ServiceConfig(Struct, frozen=True, kw_only=True):
    """How a service is set up; `create_app` makes it."""

    store: Store
    """Where conversations are kept. The service closes it."""
    models: Mapping[str, ModelRoute]
    """By the names that clients use; the first is the default, and `*` stands for any other."""
    keys: Path | None = None
    """The file with the hashed keys; without one, only this machine may use the service."""
    compression: Strategy | None = None
    """None uses the library's default."""
    bounds: Bounds = Bounds()
    keep_unstored: bool = True
    """Whether a named conversation is kept when its client says `store: false`, as agents do that
    send the whole history with each request. Of a key's requests the key decides."""
    on_rewrite: Literal["fork", "rewind"] = "fork"
    """What becomes of a conversation whose client sends a history that leaves the stored one."""
    ping: float = 15.0
    """Seconds of silence on a stream after which a comment is sent."""
    keep_turns: float = 600.0
    """Seconds that the events of an ended turn can be read again."""
    drain: float = 1.0
    """Seconds that running turns have to end when the service stops."""

    def __post_init__(self) -> None:
        if not self.models:
            raise InvalidOptions("models: name at least one")
        if next(iter(self.models)) == "*":
            raise InvalidOptions("models: '*' can't be the first: name the default model")
