"""What a run of an agent was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_context._validation import check_type
from agent_context.agent.usage_limits import UsageLimits
from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.sessions.session import AgentSession
from agent_context.tools import ApprovalDecision, Tool

__all__ = ["RunRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a run was asked for."""

    agent: str | None = None
    """The agent's name."""
    messages: Sequence[Message] = ()
    ids: frozenset[str] = frozenset()
    """Of those messages that the caller made, who may have said them before."""
    session: AgentSession | None = None
    options: SendOptions = field(default_factory=SendOptions)
    tools: Sequence[Tool] = ()
    approvals: Mapping[str, ApprovalDecision] = field(default_factory=dict[str, ApprovalDecision])
    output_type: type[Any] | None = None
    usage_limits: UsageLimits | None = None
    deps: object = None
    """What tools and instructions of this run get as `RunContext.deps`."""
    wait: bool = False
    """Whether the run ends for its caller only when the last provider has had its turn."""

    def __post_init__(self) -> None:
        if self.session is not None:
            check_type("session", self.session, AgentSession)
        if self.usage_limits is not None:
            check_type("usage_limits", self.usage_limits, UsageLimits)
