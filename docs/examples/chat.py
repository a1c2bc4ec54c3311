"""A chat of two questions, the second of which makes sense after the first alone."""

from agent_context import AgentContext, Message
from agent_context_backends.openai import OpenAIBackend  # its key: OPENAI_API_KEY

terse = Message.system("Answer in one short sentence.")
with AgentContext.start(OpenAIBackend(), immutable=[terse]) as ctx:
    for question in ("What is the capital of Japan?", "And of Norway?"):
        print(ctx.say(question))
