"""A directory for the model to work in."""

from __future__ import annotations

import os
from typing import Any, Literal

from agent_context._sandbox_fs import SandboxedDirectory
from agent_context.errors import InvalidOptions
from agent_context.messages import ToolCall
from agent_context.providers.context import SessionContext
from agent_context.providers.provider import AgentLike, ContextProvider
from agent_context.providers.workspace_files import FileLimits, PathScope, WorkspaceFiles
from agent_context.sessions.session import AgentSession
from agent_context.skills.metadata import one_line
from agent_context.tools import ApprovalPolicy, FunctionTool, tool
from agent_context.tools.arguments import read_object

__all__ = ["ScopePolicy", "WorkspaceProvider"]

ScopePolicy = Literal["deny", "approve", "allow"]
"""What becomes of calls for files outside of the workspace."""

_POLICIES = {
    "deny": "Nothing outside of it can be touched.",
    "approve": "For what is outside of it, each call must be approved by somebody first.",
    "allow": "What is outside of it can be used too, by absolute paths.",
}


class WorkspaceProvider(ContextProvider):
    """Tells the model of a directory, and gives it tools for the files there.

    No link is followed: what a link in the workspace leads to is reached by no path through it.
    Results begin with the scope: `[workspace]` or `[outside_workspace]`.
    """

    kind = "workspace"

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        name: str | None = None,
        policy: ScopePolicy = "deny",
        writable: bool = True,
        write_approval: ApprovalPolicy = "never",
        limits: FileLimits = FileLimits(),  # noqa: B008 - frozen
        source_id: str = "workspace",
    ) -> None:
        """`write_approval` holds inside the workspace, and `policy` outside of it.

        Raises `PathNotAllowed` if there is no such directory.
        """
        if policy not in _POLICIES:
            raise InvalidOptions(f"policy: one of {', '.join(_POLICIES)}, not {policy!r}")
        super().__init__(source_id)
        self.policy = policy
        self.root = SandboxedDirectory(root)
        self.title = one_line(self.root.path.name if name is None else name)
        self._files = WorkspaceFiles(self.root, limits, may_leave=policy != "deny")
        self._write_approval: ApprovalPolicy = write_approval
        self.tools = self._tools(writable=writable)
        """The tools, the same in every run."""

    @property
    def instructions(self) -> str:
        """What the model is told; the same in every run."""
        return (
            f"## Workspace {self.title}\n\n"
            f"Your files are in {one_line(str(self.root.path))}. Paths are relative to it. "
            f"{_POLICIES[self.policy]}"
        )

    async def before_run(
        self,
        *,
        agent: AgentLike,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Add instructions and tools, and note in the state which workspace it is."""
        del agent, session
        state.update(name=self.title, root=str(self.root.path), policy=self.policy)
        context.extend_instructions(self, self.instructions)
        context.extend_tools(self, self.tools)

    def _tools(self, *, writable: bool) -> tuple[FunctionTool, ...]:
        files = self._files
        reading = (files.list_files, files.read_file, files.search_files)
        writing = (files.write_file, files.edit_file) if writable else ()
        return (
            *(tool(function, approval=self._leaves) for function in reading),
            *(tool(function, approval=self._writes) for function in writing),
        )

    def _leaves(self, call: ToolCall) -> bool:
        """Whether somebody must allow it, since it goes outside."""
        path = read_object(call.arguments, who=call.name).get("path", ".")
        return self.policy == "approve" and self._files.scope(path) is PathScope.OUTSIDE

    def _writes(self, call: ToolCall) -> bool:
        if self._leaves(call):
            return True
        approval = self._write_approval
        return approval(call) if callable(approval) else approval == "require"
