"""Where the command keeps its files, and how it ends when something is wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from agent_context.errors import AgentContextError

__all__ = ["data_folder", "failures", "key_file"]


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


@contextmanager
def failures() -> Generator[None]:
    """End the command with what is wrong, on one line, and status 1."""
    try:
        yield
    except (AgentContextError, OSError) as error:
        sys.exit(f"context-actor: {error}")
