"""Checks of an address and a key that somebody gave."""

from __future__ import annotations

import re
from dataclasses import dataclass

import httpx

from agent_context.errors import InvalidOptions

__all__ = ["Address", "check_url", "clean_key"]


@dataclass(frozen=True, slots=True)
class Address:
    """Where an API is."""

    base: str
    """Without the endpoint, the query, and a last slash."""
    query: str = ""
    """What goes behind each endpoint, such as `?api-version=…`; with its question mark."""

    def url(self, path: str, *, base: str | None = None) -> httpx.URL:
        """The address of an endpoint, here or at another base."""
        return httpx.URL((self.base if base is None else base) + path + self.query)


_ENDPOINTS = ("/chat/completions", "/responses")


def check_url(base_url: str | None) -> Address:
    """The address, also if it names an endpoint. Raises `InvalidOptions`, which shows no secret."""
    if not base_url:
        raise InvalidOptions("where is the server? Give base_url")
    base_url = base_url.strip()
    shown = _without_secrets(base_url)
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise InvalidOptions(f"base_url {shown!r}: {error}") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidOptions(f"base_url {shown!r}: an address starts with http:// or https://")
    base, mark, query = base_url.partition("#")[0].partition("?")
    base = base.rstrip("/")
    for endpoint in _ENDPOINTS:
        base = base.removesuffix(endpoint)
    return Address(base.rstrip("/"), mark + query if query else "")


def _without_secrets(url: str) -> str:
    """The address without a password and without what is asked of it."""
    return re.sub(r"[^/]*@", "…@", url.partition("?")[0])


def clean_key(key: str, name: str) -> str:
    """The key, which came from `name`. Raises `InvalidOptions`."""
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InvalidOptions(f"{name} is no key: a key is printable ASCII")
    return key
