"""Go on with a conversation that another program kept.

Run it with a file to see what is in it: lines of messages, an SQLite file of openai-agents, or the
export of ChatGPT, DeepSeek or Claude. Without one it makes a file whose last line was cut off.
"""

import sys
import tempfile
from pathlib import Path

from agent_context import AgentContext, Extend, Message, Send
from agent_context.imports import read
from agent_context_backends.scripted import ScriptedBackend

LINES = """\
{"role": "user", "content": "Name a river."}
{"role": "assistant", "content": "The Elbe."}
{"role": "user", "content": "And ano"""


def main(path: Path) -> None:
    imported = read(path)
    for piece in imported.quarantined:
        print(f"{piece.where}: {piece.why}")
    for found in imported.conversations:
        print(f"{found.title or found.id or 'a conversation'}: {len(found.messages)} messages")

    conversation = AgentContext.start(ScriptedBackend(["The Oder."]))
    conversation.ask(Extend(imported.conversations[0].messages))
    answer = conversation.ask(Send(messages=[Message.user("And another one.")]))
    print(answer.message.text)
    conversation.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        given = Path(directory) / "chat.jsonl"
        given.write_text(LINES)
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else given)
