"""Where the command keeps its files, and how it ends when something is wrong."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from agent_context.errors import AgentContextError, InvalidOptions, StoreError
from agent_context.stores.store import Store

__all__ = [
    "STORE_VARIABLE",
    "data_folder",
    "failures",
    "key_file",
    "one_line",
    "open_store",
    "open_usual_store",
    "said_store",
]

STORE_VARIABLE: Final = "CONTEXT_ACTOR_STORE"
_USUAL: Final = "context-actor.db"
_INTERRUPTED: Final = 130
_SECRETS = re.compile(r"(_KEY|_TOKEN|_SECRET|PASSWORD)$")
_SHORTEST_SECRET: Final = 6


def data_folder() -> Path:
    """The user's folder for data, made if it is not there."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local"))
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    folder = base / "context-actor"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def key_file(given: Path | None) -> Path:
    """The file with the keys."""
    return given or data_folder() / "keys.json"


def said_store(given: str | None) -> str | None:
    """What `--store` says, else the environment; None if neither says anything."""
    return given or os.environ.get(STORE_VARIABLE) or None


def open_usual_store(given: str | None, *, create: bool) -> Store:
    """The store that is named, else `context-actor.db` in this folder.

    Without `create` a file has to be there. Raises `InvalidOptions` and `StoreError`.
    """
    return open_store(said_store(given) or _USUAL, create=create)


def open_store(place: str | Path, *, create: bool = True) -> Store:
    """The store at a path, an `sqlite:///` URL, or a `postgresql://` URL.

    Without `create` a file has to be there. Raises `InvalidOptions` and `StoreError`.
    """
    text = str(place)
    scheme, found, path = text.partition("://")
    if found and scheme in {"postgresql", "postgres"}:
        from agent_context.stores.postgres import PostgresStore

        return PostgresStore(text)
    if found and scheme != "sqlite":
        raise InvalidOptions(f"store: sqlite:///FILE or postgresql://…, not {scheme}://…")
    # As in SQLAlchemy: three slashes before a relative path, four before an absolute one.
    file = Path(path.removeprefix("/") if found else text)
    if not create and not file.exists():
        raise StoreError(f"store: there is no file {file}; --store says where it is")
    from agent_context.stores.sqlite import SqliteStore

    return SqliteStore(file)


@contextmanager
def failures() -> Generator[None]:
    """End the command with what is wrong, on one line: status 1, and 130 for Ctrl-C."""
    try:
        yield
    except BrokenPipeError:  # who read the output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (AgentContextError, OSError) as error:
        sys.exit(f"context-actor: {one_line(error)}")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def one_line(error: BaseException) -> str:
    """What an error says, on one line and without what the environment keeps secret."""
    text = " ".join((str(error) or type(error).__name__).split())
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRETS.search(name.upper()):
            text = text.replace(value, "…")
    return re.sub(r"://[^/\s]*@", "://…@", text)
