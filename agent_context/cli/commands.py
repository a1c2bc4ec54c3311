"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    name="context-actor",
    help="Conversations with language models, kept within the window.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
keys = typer.Typer(help="Keys of those who may use the service.", no_args_is_help=True)
app.add_typer(keys, name="keys")

KeyFile = Annotated[
    Path | None,
    typer.Option("--keys", help="File with the hashed keys; by default in the user's data folder."),
]


@app.command()
def serve(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8321,
    store: Annotated[
        str | None,
        typer.Option(help="sqlite:///FILE or postgresql://…; by default in the data folder."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="NAME=BACKEND[:MODEL], the default first; NAME may be *."),
    ] = None,
    key_file: KeyFile = None,
    on_rewrite: Annotated[
        str, typer.Option(help="When a client's history leaves the stored one: fork or rewind.")
    ] = "fork",
    requests_per_minute: Annotated[
        int | None, typer.Option(help="Most requests of one key.", min=1)
    ] = None,
) -> None:
    """Serve conversations over HTTP, as OpenAI, Anthropic and the service's own API."""
    from agent_context.cli.serve import ServeOptions, run

    run(
        ServeOptions(
            host=host,
            port=port,
            store=store,
            models=tuple(model or ()),
            keys=key_file,
            on_rewrite=on_rewrite,
            requests_per_minute=requests_per_minute,
        )
    )


@keys.command("create")
def create_key(
    *,
    tenant: Annotated[str, typer.Option(help="Whose conversations it opens.")] = "default",
    scope: Annotated[
        list[str] | None, typer.Option(help="read, write (the default) or admin.")
    ] = None,
    name: Annotated[str, typer.Option(help="A note for you.")] = "",
    keep_unstored: Annotated[
        bool, typer.Option(help="Keep conversations of clients that say store: false.")
    ] = False,
    key_file: KeyFile = None,
) -> None:
    """Make a key. It is printed once; only its hash is kept."""
    from agent_context.cli.keys import create

    create(key_file, tenant, tuple(scope or ("write",)), name, keep_unstored=keep_unstored)


@keys.command("list")
def list_keys(*, key_file: KeyFile = None) -> None:
    """The keys by id, without what opens."""
    from agent_context.cli.keys import show

    show(key_file)


@keys.command("revoke")
def revoke_key(key_id: str, *, key_file: KeyFile = None) -> None:
    """Have a key open nothing any more, at once."""
    from agent_context.cli.keys import revoke

    revoke(key_file, key_id)
