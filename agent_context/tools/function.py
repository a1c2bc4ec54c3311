"""Tools made from Python functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, overload

from pydantic import Field

from agent_context._validation import explain_foreign_names
from agent_context.errors import InvalidOptions, ToolError
from agent_context.tools.arguments import normalize_arguments, read_arguments
from agent_context.tools.docstring import Docs, parse_docstring
from agent_context.tools.offload import in_thread
from agent_context.tools.schema import json_schema, strict_schema
from agent_context.tools.signature import Signature, is_unbound, plain_function
from agent_context.tools.tool import ApprovalPolicy, CallableTool, RunContext, ToolContext

__all__ = ["FunctionTool", "tool"]

Function = Callable[..., Any]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class FunctionTool(CallableTool):
    """A typed Python function that the model may call; made by `tool`."""

    target: Function = Field(exclude=True, repr=False)
    """The function. A synchronous one runs on a thread."""
    signature: Signature = Field(exclude=True, repr=False)

    def __call__(self, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - whatever it returns
        """Call the function as if it were no tool."""
        return self.target(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> FunctionTool:
        """Bind a method that was decorated in its class."""
        if instance is None or not is_unbound(self.target):
            return self
        bound = self.target.__get__(instance, owner)
        return self.model_copy(update={"target": bound})

    @property
    def interruptible(self) -> bool:
        """Only what is asynchronous can be stopped."""
        return _is_async(self.target)

    def check_run(self, run: RunContext[Any]) -> None:
        """Raises `InvalidOptions` if the function takes other `deps` than the run has."""
        self.signature.check_deps(run, who=self.name)

    def normalize(self, arguments: str) -> str:
        """The arguments that fit the annotations, as the function will get them."""
        return normalize_arguments(arguments, self.signature.model, who=self.name)

    async def call(self, arguments: str, context: ToolContext) -> object:
        """Run the function with arguments that fit its annotations."""
        if is_unbound(self.target):
            raise ToolError(f"{self.name} is a method without its object; take it from an instance")
        values = read_arguments(arguments, self.signature.model, who=self.name)
        positional, named = self.signature.bound(values, context)
        work = partial(self.target, *positional, **named)
        if _is_async(self.target):
            return await work()
        result = await in_thread(work)
        return await result if inspect.isawaitable(result) else result


@overload
def tool(function: Function, /) -> FunctionTool: ...


@overload
def tool(
    function: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    approval: ApprovalPolicy = "never",
    max_result: int | None = None,
    strict: bool | None = None,
) -> Callable[[Function], FunctionTool]: ...


@overload
def tool(
    function: Function,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    approval: ApprovalPolicy = "never",
    max_result: int | None = None,
    strict: bool | None = None,
) -> FunctionTool: ...


@explain_foreign_names(
    {
        "approval_mode": "approval='require' or 'never'",
        "description_override": "description",
        "max_invocations": "Agent(usage_limits=UsageLimits(calls_per_tool={…}))",
        "name_override": "name",
        "needs_approval": "approval='require', or a function of the call",
        "requires_approval": "approval='require', or a function of the call",
    }
)
def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    approval: ApprovalPolicy = "never",
    max_result: int | None = None,
    strict: bool | None = None,
) -> FunctionTool | Callable[[Function], FunctionTool]:
    """Make a tool of a function with annotations; also a decorator, with or without options.

    The schema comes from the annotations, the descriptions from the docstring or from
    `Annotated[..., Field(description=…)]`. A parameter annotated `ToolContext` is for the program.

    Args:
        function: A function, method, partial or object that can be called; sync or async.
        name: What the model calls it; else the function's name.
        description: What the model is told; else the docstring without its parameters.
        timeout: Seconds for one call; None takes the toolbox's.
        approval: Whether somebody must allow a call before it runs.
        max_result: Characters of a result that the model reads at once; None takes the toolbox's.
        strict: Whether the vendor should hold the model to the schema.

    Raises:
        InvalidOptions: the function can't be a tool as it is; the text says what to change.
    """
    settings = partial(
        _make_tool,
        name=name,
        description=description,
        timeout=timeout,
        approval=approval,
        max_result=max_result,
        strict=strict,
    )
    return settings if function is None else settings(function)


def _make_tool(
    function: Function,
    *,
    name: str | None,
    description: str | None,
    strict: bool | None,
    **settings: Any,  # noqa: ANN401 - checked by the model that takes them
) -> FunctionTool:
    name = _name(function) if name is None else name
    if not _NAME.fullmatch(name):
        raise InvalidOptions(
            f"tool {name!r}: a name has 1 to 64 letters, digits, '_' and '-'; give another by name="
        )
    who = f"tool {name!r}"
    docs = _docs(function)
    signature = Signature.of(function, docs.parameters, who=who)
    return FunctionTool(
        name=name,
        description=docs.description if description is None else description,
        parameters=_schema(signature, who, strict=bool(strict)),
        strict=strict,
        target=function,
        signature=signature,
        **settings,
    )


def _schema(signature: Signature, who: str, *, strict: bool) -> dict[str, Any]:
    try:
        schema = json_schema(signature.model)
        return strict_schema(schema) if strict else schema
    except InvalidOptions as error:
        raise InvalidOptions(f"{who}: {error}") from error


def _name(function: Function) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _docs(function: Function) -> Docs:
    plain = plain_function(function)
    if inspect.isroutine(function) or isinstance(function, partial):
        return parse_docstring(plain.__doc__)
    return parse_docstring(plain.__doc__ or type(function).__doc__)


def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(plain_function(function))
