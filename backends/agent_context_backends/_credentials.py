"""Checks of an address and a key that somebody gave."""

from __future__ import annotations

import httpx

from agent_context.errors import InvalidOptions

__all__ = ["check_url", "clean_key"]


def check_url(base_url: str | None) -> str:
    """The address without its last slash. Raises `InvalidOptions`."""
    if not base_url:
        raise InvalidOptions("where is the server? Give base_url")
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise InvalidOptions(f"base_url {base_url!r}: {error}") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidOptions(f"base_url {base_url!r}: an address starts with http:// or https://")
    return base_url.rstrip("/")


def clean_key(key: str, name: str) -> str:
    """The key, which came from `name`. Raises `InvalidOptions`."""
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InvalidOptions(f"{name} is no key: a key is printable ASCII")
    return key
