"""A chat of two questions, the second of which makes sense after the first alone."""

from agent_context import AgentContext, Message, Send
from agent_context_backends.openai import OpenAIBackend  # its key: OPENAI_API_KEY

terse = Message.system("Answer in one short sentence.")
ctx = AgentContext.start(OpenAIBackend(), immutable=[terse])
for question in ("What is the capital of Japan?", "And of Norway?"):
    reply = ctx.ask(Send(messages=[Message.user(question)]))
    print(reply.message.text)
ctx.stop()
