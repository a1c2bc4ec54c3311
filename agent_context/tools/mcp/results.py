"""What an MCP server's tool returned, as parts of a message."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent_context.messages import ImagePart, OpaquePart, Part, TextPart

if TYPE_CHECKING:
    from mcp_types import BlobResourceContents, CallToolResult, ContentBlock, TextResourceContents

__all__ = ["parts_of_result"]


def parts_of_result(result: CallToolResult) -> tuple[Part, ...]:
    """The parts of a result: its content, or else what it says in a structured form."""
    if not result.content and result.structured_content is not None:
        return (TextPart(text=json.dumps(result.structured_content, ensure_ascii=False)),)
    return tuple(_part(block) for block in result.content)


def _part(block: ContentBlock) -> Part:
    match block.type:
        case "text":
            return TextPart(text=block.text)
        case "image":
            return _image(block.mime_type, block.data)
        case "audio":
            kind = block.mime_type.rpartition("/")[2]
            sound = {"data": block.data, "format": kind}
            return OpaquePart(data={"type": "input_audio", "input_audio": sound})
        case "resource":
            return _resource(block.resource)
        case "resource_link":
            words = filter(None, (block.name, block.description, block.mime_type))
            return TextPart(text=f"[resource {block.uri}: {', '.join(words)}]")


def _image(mime_type: str, data: str) -> ImagePart:
    return ImagePart(url=f"data:{mime_type};base64,{data}")


def _resource(resource: TextResourceContents | BlobResourceContents) -> Part:
    from mcp_types import TextResourceContents

    if isinstance(resource, TextResourceContents):
        return TextPart(text=f"[resource {resource.uri}]\n{resource.text}")
    kind = resource.mime_type or "application/octet-stream"
    if kind.startswith("image/"):
        return _image(kind, resource.blob)
    size = len(resource.blob) * 3 // 4
    return TextPart(text=f"[resource {resource.uri}: {kind}, about {size} bytes, not shown]")
