"""The parameters of a function, as a model of the arguments that a call may have."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from agent_context.errors import InvalidOptions
from agent_context.tools.tool import RunContext, ToolContext

__all__ = ["Signature", "is_unbound", "plain_function"]

Function = Callable[..., Any]

_MANY = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One parameter that the model gives a value for."""

    name: str
    positional: bool
    field: str
    """Its name in the model of the arguments, where not every name can stand."""
    default: object
    computed: bool
    """Whether the default is pydantic's to make."""


@dataclass(frozen=True, slots=True)
class Signature:
    """How JSON arguments become those of a function."""

    # Two tools that say the same are the same, however their arguments are read.
    model: type[BaseModel] = field(compare=False)
    parameters: tuple[_Parameter, ...] = field(compare=False)
    contexts: tuple[str, ...] = field(compare=False)
    """The parameters that get the `ToolContext`."""
    runs: Mapping[str, object] = field(default_factory=dict[str, object], compare=False)
    """The parameters that get the `RunContext`, each with the type of its `deps`."""

    @classmethod
    def of(cls, function: Function, descriptions: Mapping[str, str], *, who: str) -> Signature:
        """Read a function. Raises `InvalidOptions` that names the parameter and what to do."""
        own = dict(_own_parameters(function, who))
        kinds = _kinds(function, own, who)
        contexts = tuple(name for name, kind in kinds.items() if _is_context(kind))
        runs = {name: _deps_of(kind) for name, kind in kinds.items() if _is_run(kind)}
        kinds = {n: kind for n, kind in kinds.items() if n not in contexts and n not in runs}
        shown = [own[name] for name in kinds]
        fields: dict[str, Any] = {
            f"p{number}": (_describe(item.name, kinds[item.name], descriptions), _default(item))
            for number, item in enumerate(shown)
        }
        parameters = tuple(_parameter(item, f"p{n}") for n, item in enumerate(shown))
        return cls(_model(fields, kinds, who), parameters, contexts, runs)

    def check_deps(self, run: RunContext[Any], *, who: str) -> None:
        """Raises `InvalidOptions` if a parameter wants other `deps` than the run has."""
        for kind in self.runs.values():
            if isinstance(kind, type) and not isinstance(run.deps, kind):
                raise InvalidOptions(
                    f"{who} takes a RunContext[{kind.__name__}], and deps is "
                    f"{type(run.deps).__name__}: run(…, deps=…) gives them"
                )

    def bound(
        self, values: BaseModel, context: ToolContext
    ) -> tuple[list[object], dict[str, object]]:
        """What to call the function with."""
        positional: list[object] = []
        named: dict[str, object] = dict.fromkeys(self.contexts, context)
        named |= dict.fromkeys(self.runs, context.run or RunContext(deps=None))
        for item in self.parameters:
            given = item.field in values.model_fields_set or item.computed
            if item.positional:
                positional.append(getattr(values, item.field) if given else item.default)
            elif given:
                named[item.name] = getattr(values, item.field)
        return positional, named


def plain_function(function: Function) -> Function:
    """What was written with `def`, under partials, methods and objects that can be called."""
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = type(function).__call__
    return cast("Function", getattr(function, "__func__", function))


def is_unbound(function: Function) -> bool:
    """Whether this is a method on its way into a class, whose `self` nobody has given yet."""
    if not inspect.isfunction(function):
        return False
    names = list(inspect.signature(function).parameters)
    outer = function.__qualname__.rpartition(".")[0]
    return names[:1] == ["self"] and bool(outer) and not outer.endswith("<locals>")


def _own_parameters(function: Function, who: str) -> Iterator[tuple[str, inspect.Parameter]]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidOptions(f"{who}: its parameters can't be read: {error}") from error
    for item in parameters[1:] if is_unbound(function) else parameters:
        if item.kind in _MANY:
            raise InvalidOptions(
                f"{who}: a model can't be told of {_MANY[item.kind]}{item.name}; "
                "name each parameter, or take a list or a dict"
            )
        if item.annotation is inspect.Parameter.empty:
            raise InvalidOptions(f"{who}: parameter {item.name!r} has no annotation; give it one")
        yield item.name, item


def _kinds(function: Function, own: Mapping[str, inspect.Parameter], who: str) -> dict[str, object]:
    scope = getattr(inspect.unwrap(plain_function(function)), "__globals__", {})
    kinds: dict[str, object] = {}
    for name, item in own.items():
        written = types.SimpleNamespace(__annotations__={name: item.annotation})
        try:
            kinds |= get_type_hints(written, globalns=scope, include_extras=True)
        except Exception as error:
            raise InvalidOptions(
                f"{who}: the annotation {item.annotation!r} of parameter {name!r} can't be read "
                f"({type(error).__name__}: {error}); its names must be those of the module"
            ) from error
    return kinds


def _is_run(kind: object) -> bool:
    return kind is RunContext or get_origin(kind) is RunContext


def _deps_of(kind: object) -> object:
    kinds = get_args(kind)
    return object if not kinds or kinds[0] is Any else kinds[0]


def _is_context(kind: object) -> bool:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in {Union, types.UnionType}:
        return any(_is_context(choice) for choice in get_args(kind))
    return kind is ToolContext


def _describe(name: str, kind: object, descriptions: Mapping[str, str]) -> object:
    """The type, with the parameter's name and description on it."""
    words = [item for item in get_args(kind)[1:] if isinstance(item, str)]
    text = words[0] if words and get_origin(kind) is Annotated else descriptions.get(name)
    if text and not _has_description(kind):
        return Annotated[kind, Field(alias=name, description=text)]
    return Annotated[kind, Field(alias=name)]


def _has_description(kind: object) -> bool:
    extras = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return any(isinstance(item, FieldInfo) and item.description for item in extras)


def _default(item: inspect.Parameter) -> object:
    return ... if item.default is inspect.Parameter.empty else item.default


def _parameter(item: inspect.Parameter, field: str) -> _Parameter:
    return _Parameter(
        name=item.name,
        positional=item.kind is inspect.Parameter.POSITIONAL_ONLY,
        field=field,
        default=item.default,
        computed=isinstance(item.default, FieldInfo),
    )


def _model(fields: dict[str, Any], kinds: Mapping[str, object], who: str) -> type[BaseModel]:
    config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    try:
        return create_model("Arguments", __config__=config, **fields)
    except PydanticUserError as error:
        culprit = _culprit(kinds)
        raise InvalidOptions(f"{who}: {culprit}no JSON can become its type: {error}") from error


def _culprit(kinds: Mapping[str, Any]) -> str:
    for name, kind in kinds.items():
        try:
            TypeAdapter(kind)
        except PydanticUserError:
            return f"parameter {name!r}: "
    return ""
