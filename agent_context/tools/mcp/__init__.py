"""Tools of MCP servers, through the official `mcp` package (the extra `mcp`)."""

from agent_context.tools.mcp.source import McpTool, McpTools

__all__ = ["McpTool", "McpTools"]
