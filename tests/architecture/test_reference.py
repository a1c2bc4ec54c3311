"""The reference of docs/ shows every public module."""

import pkgutil
import re
from pathlib import Path

import agent_context
import agent_context_backends

REFERENCE = Path(__file__).parents[2] / "docs/reference"


def test_the_reference_has_every_public_module() -> None:
    pages = "".join(page.read_text("utf-8") for page in REFERENCE.glob("*.md"))
    shown = [f"{name}." for name in re.findall(r"^::: (\S+)", pages, re.MULTILINE)]
    missing = [
        f"docs/reference: a page needs the line `::: {name}`"
        for name in public_modules()
        if not any(module.startswith(f"{name}.") for module in shown)
    ]

    assert missing == [], "\n".join(missing)


def public_modules() -> list[str]:
    return [
        f"{package.__name__}.{module.name}"
        for package in (agent_context, agent_context_backends)
        for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_")
    ]
