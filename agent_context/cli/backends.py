"""Which model a command talks to: the one that is named, else the one whose key is there."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from agent_context._installed_backends import find_usable, is_key_missing, open_backend
from agent_context.backend import ContextBackend
from agent_context.errors import InvalidOptions
from agent_context.options import SendOptions

__all__ = ["Choice", "choose", "choose_unasked"]


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


def choose(named: str | None) -> Choice:
    """The backend of `NAME[:MODEL]`; for None the one that this machine can talk to.

    Raises `InvalidOptions` for a name that is not installed, and if the keys of several vendors
    are there.
    """
    name, model = _split(named)
    return Choice(name, open_backend(name), model)


def choose_unasked(named: str | None, **options: Any) -> Choice:  # noqa: ANN401 - as the backend has them
    """The same for commands that ask the model nothing: no key is needed."""
    name, model = _split(named)
    if is_key_missing(name):
        options["api_key"] = "none"
    return Choice(name, open_backend(name, **options), model)


def _split(named: str | None) -> tuple[str, str | None]:
    name, _, model = (named or _find_only_usable()).partition(":")
    return name, model or None


def _find_only_usable() -> str:
    found = sorted(find_usable())
    if len(found) > 1:
        raise InvalidOptions(
            f"model: there are keys of {', '.join(found)}; say which, as in --model {found[0]}"
        )
    return found[0]
