"""Keys of a service: made, listed, revoked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from agent_context.cli.places import failures, key_file
from agent_context.service.auth import KeyFile, Scope

__all__ = ["create", "revoke", "show"]


def create(
    path: Path | None, tenant: str, scopes: Sequence[str], name: str, *, keep_unstored: bool
) -> None:
    """Print a new key."""
    with failures():
        token, key = KeyFile(key_file(path)).create(
            tenant=tenant,
            scopes=cast("Sequence[Scope]", scopes),
            name=name,
            keep_unstored=keep_unstored,
        )
    print(token)  # noqa: T201 - what the command is for
    print(f"{key.id}: tenant {key.tenant}, {' '.join(key.scopes)}", file=sys.stderr)  # noqa: T201


def show(path: Path | None) -> None:
    """Print what is known of each key."""
    with failures():
        keys = KeyFile(key_file(path)).load()
    for key in keys:
        made = datetime.fromtimestamp(key.created_at, UTC).strftime("%Y-%m-%d")
        print(key.id, key.tenant, ",".join(key.scopes), made, key.name)  # noqa: T201


def revoke(path: Path | None, key_id: str) -> None:
    """Revoke a key, or say that there is none."""
    with failures():
        if not KeyFile(key_file(path)).revoke(key_id):
            sys.exit(f"context-actor: there is no key {key_id!r}")
