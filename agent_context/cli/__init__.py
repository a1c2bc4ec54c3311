"""The command `context-actor`. What a command needs is imported when it runs."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    try:
        from agent_context.cli.commands import app
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.exit("context-actor: pip install 'context-actor[service]'")
    app()
