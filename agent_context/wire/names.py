"""Names of functions and speakers, as every API takes them."""

from __future__ import annotations

import re

__all__ = ["function_name", "speaker_name"]

# What OpenAI accepts (2026-11), and nobody accepts more.
_NOT_IN_A_FUNCTION = re.compile(r"[^a-zA-Z0-9_-]")
_NOT_IN_A_SPEAKER = re.compile(r"[\s<|\\/>]")
_LONGEST = 64


def function_name(name: str) -> str:
    """The name, or the nearest legal one."""
    return _NOT_IN_A_FUNCTION.sub("_", name)[:_LONGEST] or "unknown"


def speaker_name(name: str) -> str:
    """The name, or the nearest legal one."""
    return _NOT_IN_A_SPEAKER.sub("_", name)[:_LONGEST]
