"""A notebook that outgrows a small window, with a small model on this machine. Needs no network."""

from agent_context import (
    AgentContext,
    ChangeEvent,
    EstimateTokens,
    Message,
    SendOptions,
    SendStream,
    Summarize,
    TextDelta,
    events,
)
from agent_context_backends.local import LocalBackend

SUMMARIZE = "Repeat all that was said, in short sentences."
EXAMPLE = [  # a small model does what it is shown
    Message.system("You are a notebook. Repeat what is asked for."),
    Message.user("The tea is green."),
    Message.assistant("The tea is green."),
    Message.user("The cup is red."),
    Message.assistant("The cup is red."),
    Message.user("What colour is the tea?"),
    Message.assistant("The tea is green."),
    Message.user(SUMMARIZE),
    Message.assistant("The tea is green. The cup is red."),
]
SAID = (
    "The train leaves at 9.",
    "The hotel is the Astoria.",
    "The key is under the mat.",
    "When does the train leave?",
)


def tell(event: ChangeEvent) -> None:
    if isinstance(event, events.Compressed):
        print(f"[{len(event.removed)} messages became one: {event.summary.text}]\n       ", end="")


ctx = AgentContext.start(
    LocalBackend(),
    immutable=EXAMPLE,
    options=SendOptions(context_window=300, max_tokens=100, temperature=0),
    compression=Summarize(keep=2, target=60, prompt=SUMMARIZE),
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
    f"incremental {used.incremental}: {used.total} of {used.window} tokens"
)
ctx.stop()
