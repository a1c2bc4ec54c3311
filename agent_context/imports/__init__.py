"""Conversations that other programs kept: files of lines, databases, exports of chat services.

Every reader gives an `Imported`: the conversations, whose messages `Extend` takes, and what
couldn't be read. `read` finds out itself what a file is.
"""

from agent_context.imports.agents_sqlite import read_agents_sqlite
from agent_context.imports.chatgpt import read_chatgpt
from agent_context.imports.claude import read_claude
from agent_context.imports.claude_code import read_claude_code
from agent_context.imports.codex import read_codex
from agent_context.imports.deepseek import read_deepseek
from agent_context.imports.detect import Format, detect, read
from agent_context.imports.jsonl import jsonl_pieces, read_jsonl, recover_jsonl
from agent_context.imports.jsonl_file import JsonlFile
from agent_context.imports.result import ImportedConversation, ImportResult, Rejected
from agent_context.imports.sharegpt import read_sharegpt

__all__ = [
    "Format",
    "ImportResult",
    "ImportedConversation",
    "JsonlFile",
    "Rejected",
    "detect",
    "jsonl_pieces",
    "read",
    "read_agents_sqlite",
    "read_chatgpt",
    "read_claude",
    "read_claude_code",
    "read_codex",
    "read_deepseek",
    "read_jsonl",
    "read_sharegpt",
    "recover_jsonl",
]
