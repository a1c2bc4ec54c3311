"""Whether two names mean the same model."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["same_model"]

# Snapshots: `gpt-5.4-2026-03-05`, `qwen3-max-0923`; Ollama's tag, OpenRouter's variants.
_SNAPSHOT = re.compile(r"-(\d{4}-\d\d-\d\d|\d{8}|\d{6}|\d{4})$")
_VARIANT = re.compile(r"-latest$|:(latest|free|nitro|floor|online|exacto)$")


def same_model(asked: str, answered: str, aliases: Mapping[str, str]) -> bool:
    """Whether `answered` is what was asked for: itself, a dated version of it, or its alias."""
    wanted, found = (_VARIANT.sub("", name.lower()) for name in (asked, answered))
    wanted = aliases.get(wanted, wanted)
    return found == wanted or _SNAPSHOT.sub("", found) == wanted
