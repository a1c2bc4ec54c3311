"""What a model's requests may say, as data, and how options are said to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from agent_context.errors import InvalidOptions
from agent_context.models import ModelFacts
from agent_context.options import SendOptions
from agent_context.tools import Tool

__all__ = [
    "ChatFacts",
    "ParameterSupport",
    "SamplingLimits",
    "as_responses",
    "item_parameters",
    "message_parameters",
    "parameters",
    "refuses_tools",
    "response_formats",
    "to_chat_facts",
]

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_CHOICES = frozenset({"auto", "none", "required"})
_Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingLimits:
    """What may be chosen in one state of the model, thinking or not. None: it may not be said."""

    temperature: tuple[float, float] | None = (0.0, 2.0)
    top_p: tuple[float, float] | None = (0.0, 1.0)
    stop: int | None = 16
    """Most stop sequences."""
    tool_choices: frozenset[str] = _CHOICES | {"named"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSupport:
    """What a model takes, in the server's words. What isn't here is refused before the call."""

    max_tokens: str = "max_tokens"
    """The field's name."""
    max_output_known: bool = True
    """Whether the facts' `max_output` is the server's limit; a guess refuses nothing."""
    thinking: Mapping[bool, _Fields] = field(default_factory=dict[bool, _Fields])
    """The fields that say thinking or not."""
    efforts: Mapping[str, _Fields] = field(default_factory=dict[str, _Fields])
    """The fields that say each effort."""
    thinks_unasked: bool = False
    """Whether it thinks if nothing is said."""
    plain: SamplingLimits = field(default_factory=SamplingLimits)
    while_thinking: SamplingLimits = field(default_factory=SamplingLimits)
    tools: bool = True
    tools_while_thinking: bool = True
    strict_tools: bool = True
    most_tools: int | None = None
    longest_tool_name: int | None = None
    response_formats: frozenset[str] = frozenset({"text", "json_object", "json_schema"})
    formats_while_thinking: frozenset[str] | None = None
    """Those of them that it takes while it thinks; None: all."""
    seed: bool = True
    images: bool = True
    """Whether it sees images; if not, a text says that one was left out."""
    other_parts: frozenset[str] | None = None
    """The types of further parts of a user's content that it takes; None: any."""
    always: _Fields = field(default_factory=dict[str, Any])
    """Fields of every request."""
    advice: Mapping[str, str] = field(default_factory=dict[str, str])
    """What to do instead, by the name of a refused option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFacts(ModelFacts):
    """What is known of a model, and of what its requests may say."""

    accepts: ParameterSupport = field(default_factory=ParameterSupport, hash=False)
    responses: ParameterSupport | None = field(default=None, hash=False)
    """What it takes on the Responses API. None: it isn't asked there unless one wants it, and then
    takes what it takes on chat completions, as far as there is a field for it."""


def to_chat_facts(facts: ModelFacts, like: ChatFacts) -> ChatFacts:
    """`facts` as they are if they say what is accepted, else with what `like` accepts."""
    if isinstance(facts, ChatFacts):
        return facts
    known = {item.name: getattr(facts, item.name) for item in fields(facts)}
    return ChatFacts(**known, accepts=like.accepts, responses=like.responses)


def parameters(options: SendOptions, facts: ChatFacts, *, who: str) -> dict[str, Any]:
    """The fields of a request that say these options. Raises `InvalidOptions` for what can't be."""
    return _ChatFields(options, facts, who).fields()


def item_parameters(options: SendOptions, facts: ChatFacts, *, who: str) -> dict[str, Any]:
    """The same for the Responses API."""
    accepts = facts.responses or as_responses(facts.accepts)
    return _ResponsesFields(options, replace(facts, accepts=accepts), who).fields()


def message_parameters(options: SendOptions, facts: ChatFacts, *, who: str) -> dict[str, Any]:
    """The same for the Messages API."""
    return _MessagesFields(options, facts, who).fields()


def response_formats(options: SendOptions, facts: ChatFacts) -> frozenset[str]:
    """The formats of answers that may be asked for with these options."""
    return _ChatFields(options, facts, "").response_formats()


def refuses_tools(options: SendOptions, facts: ChatFacts) -> bool:
    """Whether chat completions would not take these tools, because the model would think."""
    return _ChatFields(options, facts, "").refuses_tools()


def as_responses(accepts: ParameterSupport) -> ParameterSupport:
    """What a model takes on the Responses API if it takes `accepts` on chat completions.

    The effort moves into `reasoning`; there are no fields for stop sequences and a seed.
    """
    advice = {
        "stop": "the Responses API has no field for them; leave it out, or use api='chat'",
        "seed": "the Responses API has no field for it; leave it out, or use api='chat'",
    }
    return replace(
        accepts,
        max_tokens="max_output_tokens",
        thinking={key: _reasoning(said) for key, said in accepts.thinking.items()},
        efforts={key: _reasoning(said) for key, said in accepts.efforts.items()},
        plain=replace(accepts.plain, stop=None),
        while_thinking=replace(accepts.while_thinking, stop=None),
        tools_while_thinking=True,
        seed=False,
        always={"store": False},
        advice={**accepts.advice, **advice},
    )


def _reasoning(said: _Fields) -> _Fields:
    """The fields, with the effort where the Responses API has it."""
    rest = {name: value for name, value in said.items() if name != "reasoning_effort"}
    effort = said.get("reasoning_effort")
    return rest if effort is None else {**rest, "reasoning": {"effort": effort}}


@dataclass(frozen=True, slots=True)
class _ChatFields:
    options: SendOptions
    facts: ChatFacts
    who: str
    """The vendor and model, for complaints."""

    def fields(self) -> dict[str, Any]:
        thought = self._thinking()
        limits = self._limits()
        return {
            **self.facts.accepts.always,
            **self._tools(limits),
            **thought,
            **self._max_tokens(),
            **self._sampling(limits),
            **self._seed(),
            **self._response_format(),
        }

    def _refuse(self, option: str, why: str) -> InvalidOptions:
        advice = self.facts.accepts.advice.get(option)
        return InvalidOptions(f"{self.who} {why}" + (f": {advice}" if advice else ""))

    def _requested(self) -> bool | None:
        """Whether the options want thinking; None if they don't say."""
        thinking, effort = self.options.thinking, self.options.effort
        wanted = None if effort is None else effort != "none"
        if thinking is not None and wanted is not None and thinking is not wanted:
            raise InvalidOptions(f"thinking={thinking} and effort={effort!r} contradict each other")
        return wanted if thinking is None else thinking

    def _thinks(self) -> bool:
        asked = self._requested()
        return self.facts.accepts.thinks_unasked if asked is None else asked

    def _limits(self) -> SamplingLimits:
        accepts = self.facts.accepts
        thinks = self._thinks() and not self._tools_forbid()
        return accepts.while_thinking if thinks else accepts.plain

    def refuses_tools(self) -> bool:
        return self._tools_forbid() and self._thinks()

    def _tools_forbid(self) -> bool:
        """Whether tools are given to a model that takes none while it thinks."""
        return bool(self.options.tools) and not self.facts.accepts.tools_while_thinking

    def _thinking(self) -> dict[str, Any]:
        accepts, asked = self.facts.accepts, self._requested()
        if self.refuses_tools():
            if asked:
                raise self._refuse("tools_while_thinking", "takes no tools while it thinks")
            if "none" not in accepts.efforts:
                raise self._refuse("tools_while_thinking", "takes no tools")
            return dict(accepts.efforts["none"])
        return self._thinking_field() | self._effort_field()

    def _thinking_field(self) -> dict[str, Any]:
        thinking, known = self.options.thinking, self.facts.accepts.thinking
        if thinking is None:
            return {}
        if thinking not in known:
            can = "can't be told to think" if thinking else "can't be told not to think"
            raise self._refuse("thinking", can)
        return dict(known[thinking])

    def _effort_field(self) -> dict[str, Any]:
        effort, known = self.options.effort, self.facts.accepts.efforts
        if effort is None:
            return {}
        if effort not in known:
            values = f"takes the efforts {', '.join(known)}" if known else "knows no efforts"
            raise self._refuse("effort", f"{values}, not {effort!r}")
        return dict(known[effort])

    def _max_tokens(self) -> dict[str, Any]:
        wanted, most = self.options.max_tokens, self.facts.max_output
        if wanted is None:
            return {}
        if wanted > most and self.facts.accepts.max_output_known:
            raise self._refuse("max_tokens", f"writes at most {most} tokens, not {wanted}")
        return {self.facts.accepts.max_tokens: wanted}

    def _sampling(self, limits: SamplingLimits) -> dict[str, Any]:
        said: dict[str, Any] = {}
        if self.options.temperature is not None:
            self._check_range("temperature", self.options.temperature, limits.temperature)
            said["temperature"] = self.options.temperature
        if self.options.top_p is not None:
            self._check_range("top_p", self.options.top_p, limits.top_p)
            said["top_p"] = self.options.top_p
        if self.options.stop:
            if limits.stop is None or len(self.options.stop) > limits.stop:
                most = f"at most {limits.stop}" if limits.stop else "no"
                raise self._refuse("stop", f"takes {most} stop sequences{self._state()}")
            said["stop"] = list(self.options.stop)
        return said

    def _check_range(self, name: str, value: float, known: tuple[float, float] | None) -> None:
        if known is None:
            raise self._refuse(name, f"takes no {name}{self._state()}")
        low, high = known
        if not low <= value <= high:
            span = f"only {low:g}" if low == high else f"from {low:g} to {high:g}"
            raise self._refuse(name, f"takes a {name} of {span}{self._state()}, not {value:g}")

    def _state(self) -> str:
        accepts = self.facts.accepts
        if accepts.plain == accepts.while_thinking:
            return ""
        return " while it thinks" if self._thinks() else " while it doesn't think"

    def _seed(self) -> dict[str, Any]:
        if self.options.seed is None:
            return {}
        if not self.facts.accepts.seed:
            raise self._refuse("seed", "takes no seed")
        return {"seed": self.options.seed}

    def _response_format(self) -> dict[str, Any]:
        wanted, known = self.options.response_format, self.response_formats()
        if wanted is None:
            return {}
        if wanted.get("type") not in known:
            formats = ", ".join(sorted(known))
            state = "" if known == self.facts.accepts.response_formats else self._state()
            raise self._refuse(
                "response_format",
                f"answers in the formats {formats}{state}, not {wanted.get('type')!r}",
            )
        return self._format(wanted)

    def response_formats(self) -> frozenset[str]:
        """The formats that may be asked for."""
        accepts = self.facts.accepts
        narrow = accepts.formats_while_thinking
        return accepts.response_formats if narrow is None or not self._thinks() else narrow

    def _format(self, wanted: dict[str, Any]) -> dict[str, Any]:
        return {"response_format": wanted}

    def _tools(self, limits: SamplingLimits) -> dict[str, Any]:
        tools = self.options.tools
        if not tools:
            return self._choice_without_tools()
        accepts = self.facts.accepts
        if not accepts.tools:
            raise self._refuse("tools", "can't call tools")
        if accepts.most_tools is not None and len(tools) > accepts.most_tools:
            raise self._refuse("tools", f"takes at most {accepts.most_tools} tools")
        self._check_names([tool.name for tool in tools])
        said = {"tools": [self._tool(tool) for tool in tools]}
        return said if self.options.tool_choice is None else said | self._choice(limits)

    def _check_names(self, names: list[str]) -> None:
        longest = self.facts.accepts.longest_tool_name
        for name in names:
            if not _TOOL_NAME.fullmatch(name) or (longest and len(name) > longest):
                most = f", at most {longest}" if longest else ""
                raise InvalidOptions(
                    f"tool {name!r}: a name has letters, digits, '_' and '-' only{most}"
                )
        if len(set(names)) < len(names):
            raise InvalidOptions(f"tools must have different names: {', '.join(names)}")

    def _tool(self, tool: Tool) -> dict[str, Any]:
        function: dict[str, Any] = {"name": tool.name}
        if tool.description:
            function["description"] = tool.description
        function["parameters"] = tool.parameters
        if tool.strict and not self.facts.accepts.strict_tools:
            raise self._refuse("strict", f"holds no tool to its schema ({tool.name!r})")
        if tool.strict is not None and self.facts.accepts.strict_tools:
            function["strict"] = tool.strict
        return self._wrap(function)

    def _wrap(self, function: dict[str, Any]) -> dict[str, Any]:
        return {"type": "function", "function": function}

    def _choice_without_tools(self) -> dict[str, Any]:
        if self.options.tool_choice in {None, "auto", "none"}:
            return {}
        raise InvalidOptions(f"tool_choice={self.options.tool_choice!r} without any tools")

    def _check_choice(self, limits: SamplingLimits) -> bool:
        """Whether the choice names a tool."""
        choice = self.options.tool_choice
        kind = choice if isinstance(choice, str) and choice in _CHOICES else "named"
        if kind not in limits.tool_choices:
            known = ", ".join(sorted(limits.tool_choices))
            raise self._refuse(
                "tool_choice", f"takes the tool choices {known}{self._state()}, not {choice!r}"
            )
        if kind != "named" or isinstance(choice, dict):
            return False
        if choice not in {tool.name for tool in self.options.tools}:
            raise InvalidOptions(f"tool_choice={choice!r}: there is no tool of that name")
        return True

    def _choice(self, limits: SamplingLimits) -> dict[str, Any]:
        choice = self.options.tool_choice
        if self._check_choice(limits):
            return {"tool_choice": self._wrap({"name": choice})}
        return {"tool_choice": choice}


class _ResponsesFields(_ChatFields):
    """The same in the words of the Responses API, where nothing is nested in `function`."""

    __slots__ = ()

    def _wrap(self, function: dict[str, Any]) -> dict[str, Any]:
        return {"type": "function", **function}

    def _tool(self, tool: Tool) -> dict[str, Any]:
        # There a tool is strict unless it says otherwise (platform.openai.com, migration to the
        # Responses API, 2026), which would change what its schema means.
        return {"strict": False, **super()._tool(tool)}

    def _format(self, wanted: dict[str, Any]) -> dict[str, Any]:
        schema = wanted.get("json_schema", {})
        rest = {name: value for name, value in wanted.items() if name != "json_schema"}
        return {"text": {"format": {**rest, **schema}}}

    def _choice(self, limits: SamplingLimits) -> dict[str, Any]:
        match super()._choice(limits):
            case {"tool_choice": {"type": "function", "function": {"name": name}}}:
                return {"tool_choice": self._wrap({"name": name})}
            case said:
                return said


class _MessagesFields(_ChatFields):
    """The same in the words of Anthropic's Messages API."""

    __slots__ = ()

    def fields(self) -> dict[str, Any]:
        said = super().fields()
        if "stop" in said:
            said["stop_sequences"] = said.pop("stop")
        if "format" in said:
            said["output_config"] = {**said.get("output_config", {}), "format": said.pop("format")}
        return said

    def _max_tokens(self) -> dict[str, Any]:
        # It must be said; what isn't asked for is what the window keeps free.
        return super()._max_tokens() or {"max_tokens": self.facts.default_reserve}

    def _wrap(self, function: dict[str, Any]) -> dict[str, Any]:
        function["input_schema"] = function.pop("parameters")
        return function

    def _choice(self, limits: SamplingLimits) -> dict[str, Any]:
        self._check_choice(limits)
        choice = self.options.tool_choice
        if isinstance(choice, dict):
            name = choice.get("name") or choice.get("function", {}).get("name")
            return {"tool_choice": {"type": "tool", "name": name} if name else choice}
        if choice in _CHOICES:
            return {"tool_choice": {"type": {"required": "any"}.get(choice, choice)}}
        return {"tool_choice": {"type": "tool", "name": choice}}

    def _format(self, wanted: dict[str, Any]) -> dict[str, Any]:
        if wanted.get("type") != "json_schema":
            return {}
        schema = wanted.get("json_schema", {}).get("schema", wanted.get("schema"))
        return {"format": {"type": "json_schema", "schema": schema}}
