"""What a run is made of while its providers work on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from agent_context._validation import check_type
from agent_context.errors import UsageError
from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.providers.response import AgentResponse, Diagnostic
from agent_context.tools import Tool

__all__ = ["ContextResult", "ContextSnapshot", "SessionContext"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ContextResult:
    """What a provider adds to one run. The default adds nothing."""

    instructions: str | None = None
    """Put behind the agent's own instructions."""
    messages: Sequence[Message] = ()
    """Sent in front of what the caller says."""
    tools: Sequence[Tool] = ()
    """Tools that the model may call in this run."""
    replace_messages: bool = False
    """Whether `messages` take the place of what earlier providers gave, the history included."""


class _Source(Protocol):
    @property
    def source_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ContextSnapshot:
    """What had been added to a run, to go back to."""

    context_messages: Mapping[str, Sequence[Message]]
    instructions: Sequence[tuple[str, str]]
    tools: Sequence[tuple[str, Tool]]
    scratch: Sequence[tuple[str, str]]
    history_replaced_from: str | None
    conversation_source: str | None


class SessionContext:
    """One run, as its providers see and extend it.

    A `source` is a provider or its `source_id`. What is added holds for this run alone.
    """

    def __init__(
        self,
        *,
        input_messages: Iterable[Message] = (),
        session_id: str | None = None,
        options: SendOptions | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.input_messages: list[Message] = list(input_messages)
        """What the caller says in this run."""
        self.options = options or SendOptions()
        self.metadata: dict[str, Any] = dict(metadata or {})
        """Notes that providers of this run leave for each other."""
        self.prior_messages: Sequence[Message] | None = None
        """What the conversation holds, as the session's `get_messages` tells it."""
        self.context_messages: dict[str, Sequence[Message]] = {}
        """What providers add, by source, in the order in which they are sent. Not to be edited."""
        self.request_messages: Sequence[Message] = ()
        """After the run: what was sent, as far as it is known."""
        self.response: AgentResponse | None = None
        """After the run: what came of it. Of this and `error`, one is None."""
        self.error: BaseException | None = None
        """After the run: what ended it."""
        self.partial_response: AgentResponse | None = None
        """After a run that failed: what had been said and is kept."""
        self.diagnostics: list[Diagnostic] = []
        """What went wrong so far, or was left out."""
        self.invoked_sources: list[str] = []
        """The sources whose `before_run` was called: each gets one `after_run`."""
        self._instructions: list[tuple[str, str]] = []
        self._tools: list[tuple[str, Tool]] = []
        self._scratch: list[tuple[str, str]] = []
        self._history_replaced_from: str | None = None
        self._conversation_source: str | None = None
        self._loader: str | None = None

    @property
    def instructions(self) -> list[str]:
        """What providers have added to the agent's instructions."""
        return [text for _, text in self._instructions]

    @property
    def tools(self) -> list[Tool]:
        """The tools that providers have added."""
        return [tool for _, tool in self._tools]

    @property
    def tools_by_source(self) -> list[tuple[str, Tool]]:
        """The same, each with the source that added it."""
        return list(self._tools)

    @property
    def scratch(self) -> list[str]:
        """What providers want sent last of all."""
        return [text for _, text in self._scratch]

    @property
    def history_replaced_from(self) -> str | None:
        """The source whose messages, and all before them, go in the place of the history."""
        return self._history_replaced_from

    @property
    def conversation_source(self) -> str | None:
        """The source whose messages are the conversation's own, which sends them itself."""
        return self._conversation_source

    @property
    def history_source(self) -> str | None:
        """The source that loaded what was said before, whatever became of it since."""
        return self._loader

    def extend_instructions(self, source: str | _Source, text: str | Iterable[str]) -> None:
        """Add to the instructions. For what is the same in every run: it stands at the front."""
        texts = (text,) if isinstance(text, str) else text
        self._instructions += [
            (_id(source), check_type("text", item, str)) for item in texts if item
        ]

    def extend_messages(self, source: str | _Source, messages: Iterable[Message]) -> None:
        """Add messages in front of what the caller says."""
        given = (*self.context_messages.get(_id(source), ()), *_all(messages, Message))
        self.context_messages[_id(source)] = given

    def extend_tools(self, source: str | _Source, tools: Iterable[Tool]) -> None:
        """Add tools that the model may call."""
        self._tools += [(_id(source), tool) for tool in _all(tools, Tool)]

    def extend_scratch(self, source: str | _Source, text: str) -> None:
        """Add what changes from run to run: sent behind everything else, so nothing is resent."""
        if check_type("text", text, str):
            self._scratch.append((_id(source), text))

    def replace_messages(self, source: str | _Source, messages: Iterable[Message]) -> None:
        """Put messages in the place of all that providers added so far, the history included."""
        self.context_messages = {_id(source): _all(messages, Message)}
        self._history_replaced_from, self._conversation_source = _id(source), None

    def set_history(
        self, source: str | _Source, messages: Sequence[Message], *, stored: bool = False
    ) -> None:
        """Add what was said before. `stored` says that the conversation itself holds just that."""
        self._loader = _id(source)
        if stored and not self.context_messages:
            self._conversation_source = _id(source)
            self.context_messages[_id(source)] = messages
            return
        self.extend_messages(source, messages)
        self._history_replaced_from, self._conversation_source = _id(source), None

    def shorten_history(self, messages: Iterable[Message]) -> None:
        """Put messages in the place of what the history's source loaded, and of that alone."""
        if self._loader is None or self._loader not in self.context_messages:
            raise UsageError("no history was loaded in this run, or something took its place")
        self.context_messages[self._loader] = _all(messages, Message)
        self._history_replaced_from, self._conversation_source = (
            self._history_replaced_from or self._loader,
            None,
        )

    def get_messages(
        self,
        *,
        sources: Iterable[str] | None = None,
        exclude_sources: Iterable[str] = (),
        include_input: bool = False,
        include_response: bool = False,
    ) -> list[Message]:
        """What has been added so far, in order, by these sources or all, without some."""
        wanted = self.context_messages if sources is None else set(sources)
        unwanted = set(exclude_sources)
        found = [
            message
            for source, messages in self.context_messages.items()
            if source in wanted and source not in unwanted
            for message in messages
        ]
        if include_input:
            found += self.input_messages
        if include_response and self.response is not None:
            found += self.response.messages
        return found

    def add(self, source: str | _Source, result: ContextResult) -> None:
        """Take in what a provider returned."""
        check_type("result", result, ContextResult)
        if result.replace_messages:
            self.replace_messages(source, result.messages)
        elif result.messages:
            self.extend_messages(source, result.messages)
        self.extend_instructions(source, result.instructions or ())
        self.extend_tools(source, result.tools)

    def snapshot(self) -> ContextSnapshot:
        """What has been added so far, to go back to."""
        return ContextSnapshot(
            context_messages=dict(self.context_messages),
            instructions=tuple(self._instructions),
            tools=tuple(self._tools),
            scratch=tuple(self._scratch),
            history_replaced_from=self._history_replaced_from,
            conversation_source=self._conversation_source,
        )

    def restore(self, snapshot: ContextSnapshot) -> None:
        """Forget what was added since."""
        self.context_messages = dict(snapshot.context_messages)
        self._instructions = list(snapshot.instructions)
        self._tools = list(snapshot.tools)
        self._scratch = list(snapshot.scratch)
        self._history_replaced_from = snapshot.history_replaced_from
        self._conversation_source = snapshot.conversation_source


def _id(source: str | _Source) -> str:
    return source if isinstance(source, str) else source.source_id


def _all(items: Iterable[T], kind: type[T]) -> list[T]:
    return [check_type(kind.__name__.lower(), item, kind) for item in items]
