"""What a run may use, and the meter that stops it before it uses more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agent_context.errors import InvalidOptions, ToolError, UsageLimitExceeded
from agent_context.messages import Completion, Usage
from agent_context.model_call import ModelCall
from agent_context.pricing import ModelCallUsage, cost_of
from agent_context.tools.tool import ToolContext

__all__ = ["UsageLimits", "UsageMeter"]

_MANY: Final = 1_000_000


class UsageLimits(Struct, frozen=True, kw_only=True):
    """What one run may use; None is no limit. It ends before a limit is passed, not after."""

    requests: int | None = None
    """Calls of the model."""
    input_tokens: int | None = None
    """Tokens sent, all calls together; the next request is estimated before it is sent."""
    output_tokens: int | None = None
    """Tokens answered: a call may take what is left, as its `max_tokens`."""
    total_tokens: int | None = None
    cost: float | None = None
    """Money, in the currency of the model's prices. The next request counts at full price before it
    is sent, whatever the cache will spare. Of a model without known prices the run ends at once."""
    tool_calls: int | None = None
    """Calls of tools, all together; past it the run ends."""
    calls_per_tool: Mapping[str, int] = MappingProxyType({})
    """By the tool's name; past it the model is told so, and the run goes on."""

    def __post_init__(self) -> None:
        """Raises `InvalidOptions` for what is no count."""
        for name in ("requests", "input_tokens", "output_tokens", "total_tokens", "tool_calls"):
            _check_count(name, getattr(self, name))
        if self.cost is not None and not self.cost >= 0:
            raise InvalidOptions(f"usage_limits: cost: an amount of 0 or more, not {self.cost!r}")
        for tool, most in self.calls_per_tool.items():
            _check_count(f"calls_per_tool[{tool!r}]", most)


class UsageMeter:
    """What one run has used so far."""

    def __init__(self, limits: UsageLimits | None = None) -> None:
        self._limits = limits or UsageLimits()
        self.around = () if limits is None else (self.around_model,)
        """What stands around the model: nothing if there are no limits, for it costs time."""
        self.usages: list[Usage] = []
        """Of each call of the model."""
        self._spent = 0.0
        self._calls: Counter[str] = Counter()

    async def around_model(
        self, call: ModelCall, proceed: Callable[[ModelCall], Awaitable[Completion]]
    ) -> Completion:
        """Make a call if it stays within the limits. Raises `UsageLimitExceeded`."""
        used, limits = Usage.total(self.usages), self._limits
        sent, answered = used.input_tokens or 0, used.output_tokens or 0
        _check("requests", len(self.usages) + 1, limits.requests)
        _check("input_tokens", sent + call.tokens, limits.input_tokens)
        _check("total_tokens", sent + answered + call.tokens, limits.total_tokens)
        rooms = (
            _rest(limits.output_tokens, answered),
            _rest(limits.total_tokens, sent + answered + call.tokens),
            self._affordable(call),
        )
        completion = await proceed(_shorten(call, [room for room in rooms if room is not None]))
        self.usages.append(completion.usage)
        if limits.cost is not None:
            self._spent += _cost(call, completion.usage)
        return completion

    def _affordable(self, call: ModelCall) -> int | None:
        """How many tokens of an answer may still be paid; None for any number."""
        if (limit := self._limits.cost) is None:
            return None
        asked = _cost(call, Usage(input_tokens=call.tokens))
        room = limit - self._spent - asked
        if room < 0:
            raise UsageLimitExceeded(
                f"cost: {self._spent + asked:.4f} would be spent, {limit:g} is allowed"
            )
        each = _cost(call, Usage(input_tokens=0, output_tokens=_MANY)) / _MANY
        return int(room / each) if each else None

    def begin_round(self, completion: Completion) -> None:
        """Note an answer whose calls are to be carried out. Raises `UsageLimitExceeded`."""
        if not self.around:
            self.usages.append(completion.usage)
        calls = self._calls.total() + len(completion.tool_calls)
        _check("tool_calls", calls, self._limits.tool_calls)

    async def around_tool(
        self, call: ToolContext, proceed: Callable[[ToolContext], Awaitable[object]]
    ) -> object:
        """Carry a call out, unless its tool has been called often enough. Raises `ToolError`."""
        name = call.call.name
        most = self._limits.calls_per_tool.get(name)
        if most is not None and self._calls[name] >= most:
            raise ToolError(f"{name} may be called {most} times, and was: go on without it.")
        self._calls[name] += 1
        return await proceed(call)


def _shorten(call: ModelCall, rooms: Sequence[int]) -> ModelCall:
    """The call, whose answer stays within all of these tokens; the same if it does anyway."""
    if not rooms:
        return call
    if min(rooms) < 1:
        raise UsageLimitExceeded("output_tokens: nothing is left of them for an answer")
    longest = call.options.max_tokens
    if longest is None and call.facts is not None:
        longest = call.facts.max_output or None
    if longest is not None and longest <= min(rooms):
        return call
    return replace(call, options=call.options.model_copy(update={"max_tokens": min(rooms)}))


def _cost(call: ModelCall, usage: Usage) -> float:
    """What this is, or would be. Raises `UsageLimitExceeded` if nobody knows."""
    facts, model = call.facts, call.options.model or ""
    cost = None
    if facts is not None:
        cost = cost_of(ModelCallUsage(call.vendor, model, facts, usage))
    if cost is None:
        raise UsageLimitExceeded(
            f"cost: what {model or call.vendor} costs is not known: say it in the facts "
            "(CachePolicy.price, ModelFacts.output_price), or limit tokens"
        )
    return cost.amount


def _check_count(name: str, count: object) -> None:
    if count is None or (isinstance(count, int) and not isinstance(count, bool) and count >= 0):
        return
    raise InvalidOptions(f"usage_limits: {name}: a count of 0 or more, or None, not {count!r}")


def _check(name: str, wanted: int, limit: int | None) -> None:
    if limit is not None and wanted > limit:
        raise UsageLimitExceeded(f"{name}: {wanted:,} would be used, {limit:,} are allowed")


def _rest(limit: int | None, used: int) -> int | None:
    return None if limit is None else limit - used
