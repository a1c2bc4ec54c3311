"""`context-actor chat`: a talk at a terminal, or one question in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

import typer
from msgspec import Struct

from agent_context._installed_backends import ECHO
from agent_context.cli.backends import Choice, choose
from agent_context.cli.conversations import (
    all_conversations,
    opened,
    start_of_turn,
    write_new,
)
from agent_context.cli.output import say, show_json, shown_text, to_line
from agent_context.cli.places import failures, one_line
from agent_context.cli.window import show_grid
from agent_context.errors import AgentContextError, InvalidOptions
from agent_context.host import Host
from agent_context.messages import Completion, Message, new_id
from agent_context.options import SendOptions
from agent_context.protocol import (
    Compress,
    EstimateTokens,
    Fork,
    Incremental,
    Restore,
    Rewind,
    SearchHistory,
    SendStream,
    ToJsonl,
    UseBackend,
)
from agent_context.stream import Stream
from agent_context.stream_events import ReasoningDelta, StreamEvent, TextDelta

__all__ = ["ChatOptions", "run"]

_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"
_INTERRUPTED: Final = 130
_FOUND: Final = 10


class ChatOptions(Struct, frozen=True, kw_only=True):
    """As the command takes them."""

    prompt: str | None = None
    store: str | None = None
    model: str | None = None
    conversation: str | None = None
    last: bool = False
    system: str | None = None
    reasoning: bool = False
    as_json: bool = False


def run(options: ChatOptions) -> None:
    """Ask one question if it is there, in the arguments or a pipe; else talk."""
    with failures():
        choice = choose(options.model)
    if choice.name == ECHO and options.model is None:
        say("no key is set and no local model is installed: `echo` repeats what you say")
    with opened(options.store, choice.backend, choice.options, create=True) as host:
        chat = _Chat(host, choice, options)
        question = _question(options.prompt)
        if question is None:
            chat.talk()
        elif not chat.answer(question):
            sys.exit(_INTERRUPTED)


def _question(prompt: str | None) -> str | None:
    """What is asked without a talk; None if somebody sits there to be talked to."""
    piped = "" if sys.stdin.isatty() else sys.stdin.read()
    asked = "\n\n".join(part for part in (prompt, piped.strip()) if part)
    if not asked and not sys.stdin.isatty():
        raise InvalidOptions("chat: there is no question in the pipe")
    return asked or None


class _Chat:
    """One talk: the conversation it is about may change."""

    def __init__(self, host: Host, choice: Choice, options: ChatOptions) -> None:
        self._host, self._choice, self._options = host, choice, options
        self.ref = host.get(_name(host, options))

    def talk(self) -> None:
        """Read lines and answer them until there are no more."""
        with suppress(ImportError):
            import_module("readline")  # `input` has it edit lines and bring them back
        say(f"{self.ref.id} · {self._named()} · /help for commands, Ctrl-D leaves")
        interrupted = False
        while True:
            try:
                line = _read_line()
            except EOFError:
                say("")
                return
            except KeyboardInterrupt:
                if interrupted:
                    return
                say("\n(once more, or Ctrl-D, to leave)")
                interrupted = True
                continue
            interrupted = False
            if line.strip() and not self._carry_out(line.strip()):
                return

    def _carry_out(self, line: str) -> bool:
        """Answer a line or obey it; False to leave."""
        if not line.startswith("/"):
            self._try(lambda: self.answer(line))
            return True
        name, _, rest = line.partition(" ")
        if name in {"/quit", "/exit"}:
            return False
        command = _COMMANDS.get(name)
        if command is None:
            say(f"there is no {name}: /help lists what there is")
        else:
            self._try(lambda: command.work(self, rest.strip()))
        return True

    def _try(self, work: Callable[[], object]) -> None:
        """Do something whose failure ends nothing."""
        try:
            work()
        except (AgentContextError, OSError) as error:
            say(f"{type(error).__name__}: {one_line(error)}")
        except KeyboardInterrupt:
            say("\n[stopped]")

    def answer(self, said: str) -> bool:
        """Say something and print the answer as it arrives; False if Ctrl-C stopped it."""
        options = SendOptions()
        if self._options.system is not None:
            options = SendOptions(instructions=self._options.system)
        with self.ref.ask(SendStream(said, options)) as stream:
            try:
                self._print(stream)
            except KeyboardInterrupt:
                stream.cancel()
                for _ in stream:
                    pass  # what had arrived is kept: the conversation says when
                say("\n[stopped]")
                return False
        self._show_status(stream.completion)
        return True

    def _print(self, stream: Stream) -> None:
        if self._options.as_json:
            for event in stream:
                _show_event(event)
            show_json(_finished(stream.completion, self.ref.id))
            return
        written = False
        for event in stream:
            if isinstance(event, TextDelta):
                written = True
                typer.echo(event.text, nl=False)
            elif isinstance(event, ReasoningDelta) and self._options.reasoning:
                typer.echo(f"{_DIM}{event.text}{_PLAIN}", nl=False, err=True)
        typer.echo("" if written else shown_text(stream.completion.message))

    def _show_status(self, completion: Completion) -> None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()) or self._options.as_json:
            return
        size = self.ref.ask(EstimateTokens())
        parts = [_tokens(completion), _cost(completion)]
        if size.window:
            parts.append(f"window {size.total / size.window:.0%}")
        say(_DIM + " · ".join(filter(None, parts)) + _PLAIN)

    def _named(self) -> str:
        return ":".join(filter(None, (self._choice.name, self._choice.model)))

    # Commands.

    def help(self, _: str) -> None:
        for name, command in _COMMANDS.items():
            say(f"  {name + ' ' + command.takes:<18} {command.does}")

    def show_context(self, _: str) -> None:
        show_grid(self.ref)

    def compress(self, _: str) -> None:
        report = self.ref.ask(Compress())
        if report.changed:
            say(f"{report.before.total:,} -> {report.after.total:,} tokens")
        else:
            say("there is nothing to compress")

    def rewind(self, turns: str) -> None:
        removed = self.ref.ask(Rewind(start_of_turn(self.ref, _count(turns))))
        say(f"{len(removed)} messages were removed; /undo brings them back")

    def undo(self, _: str) -> None:
        say(f"{len(self.ref.ask(Restore()))} messages came back")

    def fork(self, name: str) -> None:
        self.ref = self.ref.ask(Fork(id=name or None))
        say(f"this is {self.ref.id} now")

    def start_anew(self, name: str) -> None:
        self.ref = self._host.get(name or new_id())
        say(f"this is {self.ref.id} now")

    def use_model(self, name: str) -> None:
        if name:
            self._choice = choose(name)
            self.ref.ask(UseBackend(self._choice.backend, self._choice.options))
        say(self._named())

    def export(self, file: str) -> None:
        if not file:
            raise InvalidOptions("/export FILE")
        write_new(Path(file).expanduser(), self.ref.ask(ToJsonl()), force=False)
        say(f"written to {file}")

    def search(self, words: str) -> None:
        found = self.ref.ask(SearchHistory(words, _FOUND))
        for entry in found:
            say(f"  {entry.message.role.value}: {to_line(shown_text(entry.message), 100)}")
        if not found:
            say(f"nothing holds {words!r}")

    def show_log(self, _: str) -> None:
        for message in self.ref.ask(Incremental()):
            say(f"{message.role.value}: {shown_text(message)}")


class _Command(Struct, frozen=True):
    work: Callable[[_Chat, str], object]
    takes: str
    does: str


_COMMANDS: Final[Mapping[str, _Command]] = {
    "/help": _Command(_Chat.help, "", "this list"),
    "/context": _Command(_Chat.show_context, "", "what fills the window"),
    "/compress": _Command(_Chat.compress, "", "make the history smaller now"),
    "/rewind": _Command(_Chat.rewind, "[TURNS]", "take back the last turns"),
    "/undo": _Command(_Chat.undo, "", "undo the last rewind"),
    "/fork": _Command(_Chat.fork, "[ID]", "go on in a branch"),
    "/new": _Command(_Chat.start_anew, "[ID]", "go on in another conversation"),
    "/model": _Command(_Chat.use_model, "[NAME]", "the model, or another: BACKEND[:MODEL]"),
    "/log": _Command(_Chat.show_log, "", "what was said"),
    "/search": _Command(_Chat.search, "WORDS", "find words, in what was compressed too"),
    "/export": _Command(_Chat.export, "FILE", "write the conversation as JSON lines"),
    "/quit": _Command(_Chat.help, "", "leave, as Ctrl-D does"),
}


def _name(host: Host, options: ChatOptions) -> str:
    """The conversation to go on with. Raises `InvalidOptions` if there is none to go on with."""
    if options.conversation is not None:
        return options.conversation
    if not options.last:
        return new_id()
    found = max(all_conversations(host), key=lambda info: info.updated_at, default=None)
    if found is None:
        raise InvalidOptions("--last: there is no conversation yet")
    return found.id


def _read_line() -> str:
    """One thing to say: a line, or several that each end with a backslash."""
    line = input("> ")
    while line.endswith("\\"):
        line = line[:-1] + "\n" + input("… ")
    return line


def _count(text: str) -> int:
    if text and not text.isdecimal():
        raise InvalidOptions(f"a number is expected, not {text!r}")
    return int(text or 1)


def _tokens(completion: Completion) -> str:
    usage = completion.usage
    if usage.input_tokens is None:
        return ""
    cached = usage.cached_tokens or 0
    share = f" ({cached / usage.input_tokens:.0%} cached)" if usage.input_tokens else ""
    return f"{usage.input_tokens:,} tokens in{share}, {usage.output_tokens or 0:,} out"


def _cost(completion: Completion) -> str:
    cost = completion.turn.cost if completion.turn else None
    return f"{cost.amount:.4f} {cost.currency}" if cost else ""


def _show_event(event: StreamEvent) -> None:
    if isinstance(event, TextDelta):
        show_json({"type": "text", "text": event.text})
    elif isinstance(event, ReasoningDelta):
        show_json({"type": "reasoning", "text": event.text})


def _finished(completion: Completion, conversation: str) -> dict[str, object]:
    message: Message = completion.message
    return {
        "type": "finished",
        "conversation": conversation,
        "message": message.to_dict(),
        "finish_reason": completion.finish_reason.value,
        "model": completion.model,
        "usage": completion.usage.model_dump(exclude_none=True),
    }
