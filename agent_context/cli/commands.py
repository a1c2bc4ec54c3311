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


StorePlace = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="An SQLite file or postgresql://…; else CONTEXT_ACTOR_STORE, else context-actor.db.",
    ),
]
Conversation = Annotated[str, typer.Argument(help="Its id, as `sessions` lists it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, an object a line.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", "-m", help="BACKEND[:MODEL]; else the vendor whose key is set."),
]


@app.command()
def chat(
    prompt: Annotated[
        str | None, typer.Argument(help="One question; else a talk, or what a pipe says.")
    ] = None,
    *,
    model: ModelName = None,
    store: StorePlace = None,
    conversation: Annotated[
        str | None, typer.Option("--id", help="The conversation to go on with, or to begin.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", "-c", help="Go on with the last one.")] = False,
    system: Annotated[
        str | None, typer.Option("--system", "-s", help="What the model should be and know.")
    ] = None,
    reasoning: Annotated[
        bool, typer.Option("--reasoning", "-r", help="Show what the model thinks aloud.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Talk with a model. Ctrl-C stops an answer; /help lists what else there is."""
    from agent_context.cli.chat import ChatOptions, run

    run(
        ChatOptions(
            prompt=prompt,
            store=store,
            model=model,
            conversation=conversation,
            last=last,
            system=system,
            reasoning=reasoning,
            as_json=as_json,
        )
    )


@app.command()
def models(
    backend: Annotated[str | None, typer.Argument(help="Only of this backend.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the models that are known: windows, prices, and whether a key is set."""
    from agent_context.cli.models import list_models

    list_models(backend, as_json=as_json)


@app.command()
def doctor(*, store: StorePlace = None, as_json: AsJson = False) -> None:
    """Look at what is installed, at keys (never shown) and at the store; status 1 if it is ill."""
    from agent_context.cli.models import diagnose

    diagnose(store, as_json=as_json)


@app.command()
def migrate(
    store: Annotated[str, typer.Argument(help="postgresql://…")],
    *,
    schema: Annotated[str, typer.Option(help="The schema with the tables.")] = "agent_context",
) -> None:
    """Bring the tables of a PostgreSQL store to this version; once, while no other version runs."""
    from agent_context.cli.places import failures

    with failures():
        from agent_context.stores.postgres import PostgresStore

        typer.echo(f"version {PostgresStore.migrate(store, schema=schema)}")


@app.command()
def sessions(
    *,
    store: StorePlace = None,
    limit: Annotated[int | None, typer.Option(help="Most that are listed.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """List the conversations, the last used first."""
    from agent_context.cli.conversations import list_sessions

    list_sessions(store, limit, as_json=as_json)


@app.command()
def log(
    conversation: Conversation,
    *,
    store: StorePlace = None,
    last: Annotated[int | None, typer.Option("--last", "-n", help="Only the last.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Print all that was ever said, what was compressed or taken back included."""
    from agent_context.cli.conversations import show_log

    show_log(store, conversation, last, as_json=as_json)


@app.command()
def search(
    text: str,
    *,
    store: StorePlace = None,
    conversation: Annotated[
        str | None, typer.Option("--in", help="Only in this conversation.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Most that are shown.", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """Find messages that hold words."""
    from agent_context.cli.conversations import search as run

    run(store, text, conversation, limit, as_json=as_json)


@app.command()
def export(
    conversation: Conversation,
    file: Annotated[Path | None, typer.Argument(help="Where to; else the output.")] = None,
    *,
    store: StorePlace = None,
    force: Annotated[bool, typer.Option(help="Replace a file that is there.")] = False,
) -> None:
    """Write a conversation as JSON lines, which `import` reads."""
    from agent_context.cli.conversations import export as run

    run(store, conversation, file, force=force)


@app.command("import")
def import_(
    files: list[Path],
    *,
    store: StorePlace = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="jsonl, agents-sqlite, chatgpt, deepseek or claude."),
    ] = None,
    name: Annotated[str | None, typer.Option("--id", help="What it is called here.")] = None,
    branches: Annotated[
        bool, typer.Option(help="Store other endings too, as ID~1, ID~2, …")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Store what `export` or another program wrote. What is there already stays as it is."""
    from agent_context.cli.importing import import_files

    import_files(store, files, form, name, branches=branches, as_json=as_json)


@app.command()
def fork(
    conversation: Conversation,
    name: Annotated[str | None, typer.Argument(help="The new id; else one is made up.")] = None,
    *,
    store: StorePlace = None,
    at: Annotated[
        int | None, typer.Option(help="How many incremental messages it begins with.", min=0)
    ] = None,
) -> None:
    """Branch a conversation off, and print the id of the branch."""
    from agent_context.cli.conversations import fork as run

    run(store, conversation, at, name)


@app.command()
def rewind(
    conversation: Conversation,
    *,
    store: StorePlace = None,
    to: Annotated[int | None, typer.Option(help="Incremental messages that stay.", min=0)] = None,
    turns: Annotated[int | None, typer.Option(help="Turns to take back.", min=1)] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Undo the last rewind.")] = False,
) -> None:
    """Cut a conversation back."""
    from agent_context.cli.conversations import rewind as run

    run(store, conversation, to, turns, undo=undo)


@app.command()
def compress(
    conversation: Conversation,
    *,
    store: StorePlace = None,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """Make the history smaller now, with a summary by the model where that is needed."""
    from agent_context.cli.conversations import compress as run

    run(store, conversation, model, as_json=as_json)


@app.command()
def context(
    conversation: Conversation,
    *,
    store: StorePlace = None,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """Show what fills the window."""
    from agent_context.cli.window import context as run

    run(store, conversation, model, as_json=as_json)


@app.command()
def inspect(
    conversation: Conversation,
    *,
    store: StorePlace = None,
    vendor: Annotated[
        str | None,
        typer.Option("--as", help="BACKEND[:MODEL]: the request body that it would get."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="What the user would say.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the messages by zone, or the exact request."""
    from agent_context.cli.window import inspect as run

    run(store, conversation, vendor, text, as_json=as_json)
