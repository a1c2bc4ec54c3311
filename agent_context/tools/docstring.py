"""What a docstring says of a function and its parameters."""

from __future__ import annotations

import inspect

from msgspec import Struct

__all__ = ["Docs", "parse_docstring"]


class Docs(Struct, frozen=True):
    """A docstring, taken apart."""

    description: str = ""
    parameters: dict[str, str] = {}


def parse_docstring(text: str | None) -> Docs:
    """Read a docstring in the style of Google, numpy or Sphinx; of no style, all is description."""
    if not text:
        return Docs()
    from docstring_parser import ParseError, parse

    text = inspect.cleandoc(text)
    try:
        parsed = parse(text)
    except ParseError:
        return Docs(text)
    parameters = {
        item.arg_name.lstrip("*"): " ".join((item.description or "").split())
        for item in parsed.params
    }
    paragraphs = (parsed.short_description, parsed.long_description)
    return Docs("\n\n".join(filter(None, paragraphs)), parameters)
