"""A talk that outgrows a small window, with a small model on this machine. Needs no network."""

from agent_context import (
    AgentContext,
    ChangeEvent,
    EstimateTokens,
    Message,
    SendOptions,
    SendStream,
    Summarize,
    TextDelta,
    ToJsonl,
    events,
)
from agent_context_backends.local import LocalBackend

SAID = (
    "Hello! I am Alice. I plan a trip to Japan with my two children.",
    "My son Ben is four years old. Ben loves trains.",
    "My daughter Mia is seven years old. Mia is allergic to peanuts.",
    "We will stay in Kyoto for five days.",
    "What is Mia allergic to?",
)


def tell(event: ChangeEvent) -> None:
    if isinstance(event, events.Compressed):
        print(f"[{len(event.removed)} messages became one summary] ", end="")


ctx = AgentContext.start(
    LocalBackend(),
    immutable=[Message.system("You are a travel agent. Answer in one short sentence.")],
    options=SendOptions(
        context_window=260, max_tokens=30, temperature=0, extra={"repeat_penalty": 1.15}
    ),
    compression=Summarize(
        keep=4, target=100, prompt="List the facts that I told you, in short sentences."
    ),
    on_change=tell,
)
for text in SAID:
    print(f"user:  {text}\nmodel: ", end="", flush=True)
    with ctx.ask(SendStream(messages=[Message.user(text)])) as stream:
        for event in stream:
            if isinstance(event, TextDelta):
                print(event.text, end="", flush=True)
    print(f"   <- {stream.completion.usage.input_tokens} tokens")

used = ctx.ask(EstimateTokens())
print(
    f"\nimmutable {used.immutable}, compressed {used.compressed}, "
    f"incremental {used.incremental}: {used.total} of {used.window} tokens\n"
)
print(ctx.ask(ToJsonl()), end="")
ctx.stop()
