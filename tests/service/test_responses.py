"""Responses and conversations, asked by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from agent_context import (
    BackendError,
    Completion,
    ErrorKind,
    FinishReason,
    Message,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)
from agent_context.service import Bounds
from agent_context.service.auth import KeyFile
from agent_context_backends.scripted import Hold
from tests.service.conftest import Serve
from tests.support.waiting import wait_for, wait_until

FIELDS = {
    "id", "object", "created_at", "completed_at", "status", "background", "error",
    "incomplete_details", "instructions", "max_output_tokens", "max_tool_calls", "metadata",
    "model", "output", "parallel_tool_calls", "previous_response_id", "prompt_cache_key",
    "reasoning", "safety_identifier", "service_tier", "store", "temperature", "text",
    "tool_choice", "tools", "top_logprobs", "top_p", "presence_penalty", "frequency_penalty",
    "truncation", "usage",
}  # fmt: skip


def test_a_response_has_every_field_that_the_api_has(serve: Serve, connect: Any) -> None:
    service = serve(["Hello!"])

    answer = connect(service).responses.create(
        model="scripted", input="Hi", instructions="Be kind.", metadata={"a": "b"}
    )
    raw = service.get(f"/v1/responses/{answer.id}").json()

    assert answer.output_text == "Hello!"
    assert len(FIELDS) == 31
    assert raw.keys() >= FIELDS
    assert (raw["status"], raw["metadata"], raw["instructions"]) == (
        "completed", {"a": "b"}, "Be kind.",
    )  # fmt: skip
    assert answer.usage.input_tokens_details.cache_write_tokens == 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    (request,) = service.backend.requests  # type: ignore[attr-defined]
    assert [record.message.text for record in request.records] == ["Be kind.", "Hi"]


def test_a_text_comes_in_the_events_of_the_api_in_their_order(serve: Serve, connect: Any) -> None:
    service = serve([[TextDelta("One "), TextDelta("two")]])

    events = list(connect(service).responses.create(model="scripted", input="Hi", stream=True))

    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(10))
    last = events[-1].response
    assert last.output_text == "One two"
    assert last.output[0].id == events[2].item.id == events[4].item_id == events[8].item.id
    assert service.get(f"/v1/responses/{last.id}").json()["status"] == "completed"


def test_thoughts_and_calls_are_items_of_their_own(serve: Serve, connect: Any) -> None:
    script = [
        ReasoningDelta("hm"),
        TextDelta("I look."),
        ToolCallDelta(0, "call_1", "read", '{"a"'),
        ToolCallDelta(0, arguments=": 1}"),
        ToolCallDelta(1, "call_2", "list", "{}"),
    ]
    client = connect(serve([script]))
    tools: list[Any] = [
        {"type": "function", "name": name, "parameters": {}} for name in ("read", "list")
    ]

    with client.responses.stream(model="scripted", input="Hi", tools=tools) as stream:
        events = list(stream)
        final = stream.get_final_response()

    assert [item.type for item in final.output] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    assert [(i.name, i.arguments, i.call_id) for i in final.output[2:]] == [
        ("read", '{"a": 1}', "call_1"),
        ("list", "{}", "call_2"),
    ]
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert [(event.name, event.arguments) for event in done] == [
        ("read", '{"a": 1}'),
        ("list", "{}"),
    ]
    thought = [e.type for e in events if "reasoning" in e.type]
    assert thought == ["response.reasoning_text.delta", "response.reasoning_text.done"]
    assert final.output[0].content[0].text == "hm"


def test_previous_response_goes_on_at_the_end_and_forks_before_it(
    serve: Serve, connect: Any
) -> None:
    service = serve()
    client = connect(service)
    first = client.responses.create(model="scripted", input="a")

    second = client.responses.create(model="scripted", input="b", previous_response_id=first.id)
    fork = client.responses.create(model="scripted", input="B", previous_response_id=first.id)
    third = client.responses.create(model="scripted", input="c", previous_response_id=second.id)

    assert first.conversation.id == second.conversation.id == third.conversation.id
    assert fork.conversation.id != first.conversation.id
    assert service.texts(first.conversation.id) == ["a", "re: a", "b", "re: b", "c", "re: c"]
    assert service.texts(fork.conversation.id) == ["a", "re: a", "B", "re: B"]
    assert fork.previous_response_id == first.id


def test_a_response_outlives_its_process(serve: Serve, connect: Any) -> None:
    service = serve()
    first = connect(service).responses.create(model="scripted", input="a")
    service.stop()
    later = serve()
    client = connect(later)

    kept = client.responses.retrieve(first.id)
    events = list(client.responses.retrieve(first.id, stream=True))
    second = client.responses.create(model="scripted", input="b", previous_response_id=first.id)

    assert kept == first
    assert [event.type for event in events] == ["response.completed"]
    assert second.output_text == "re: b"
    assert later.texts(first.conversation.id) == ["a", "re: a", "b", "re: b"]


def test_tool_results_go_on_from_the_response_that_called(serve: Serve, connect: Any) -> None:
    call = ToolCall(id="call_1", name="weather", arguments="{}")
    service = serve([Message.assistant("", tool_calls=[call]), "Cold."])
    client = connect(service)
    first = client.responses.create(model="scripted", input="Weather?")

    second = client.responses.create(
        model="scripted",
        input=[{"type": "function_call_output", "call_id": "call_1", "output": "-3"}],
        previous_response_id=first.id,
    )

    assert second.output_text == "Cold."
    assert service.texts(first.conversation.id) == ["Weather?", "", "-3", "Cold."]


def test_a_conversation_keeps_its_items(serve: Serve, connect: Any) -> None:
    service = serve(["Hello!"])
    client = connect(service)
    talk = client.conversations.create(
        metadata={"a": "b"}, items=[{"type": "message", "role": "user", "content": "Hi"}]
    )

    answer = client.responses.create(model="scripted", input=[], conversation=talk.id)
    items = list(client.conversations.items.list(talk.id, order="asc", limit=1))
    newest = client.conversations.items.list(talk.id, limit=1)
    added = client.conversations.items.create(
        talk.id, items=[{"type": "function_call_output", "call_id": "c", "output": "x"}]
    )
    client.conversations.items.delete(items[0].id, conversation_id=talk.id)
    updated = client.conversations.update(talk.id, metadata={"c": "d"})

    assert answer.output_text == "Hello!"
    assert [item.content[0].text for item in items] == ["Hi", "Hello!"]
    assert (newest.data[0].id, newest.has_more) == (items[1].id, True)
    assert client.conversations.items.retrieve(items[1].id, conversation_id=talk.id) == items[1]
    assert added.data[0].output == "x"
    assert service.texts(talk.id) == ["Hello!", "x"]
    assert updated.metadata == {"c": "d"}
    assert client.conversations.retrieve(talk.id) == updated
    assert client.conversations.delete(talk.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(talk.id)


def test_a_response_in_the_background_is_followed_from_any_place_and_cancelled(
    serve: Serve, connect: Any
) -> None:
    hold = Hold()
    service = serve([[TextDelta("a"), TextDelta("b"), hold, TextDelta("c")], [hold2 := Hold()]])
    client = connect(service)

    begun = client.responses.create(model="scripted", input="x", background=True)
    wait_for(hold.entered)
    running = client.responses.retrieve(begun.id)
    hold.release()
    events = list(client.responses.retrieve(begun.id, stream=True))
    rest = list(client.responses.retrieve(begun.id, stream=True, starting_after=5))
    other = client.responses.create(model="scripted", input="y", background=True)
    wait_for(hold2.entered)
    cancelled = client.responses.cancel(other.id)

    assert (begun.status, running.status) == ("queued", "in_progress")
    assert [event.type for event in events[:3]] == [
        "response.created", "response.queued", "response.in_progress",
    ]  # fmt: skip
    assert events[-1].response.output_text == "abc"
    assert [event.sequence_number for event in rest] == list(range(6, len(events)))
    assert rest == events[6:]
    assert cancelled.status == "cancelled"
    assert client.responses.retrieve(other.id).status == "cancelled"


def test_a_stream_that_its_client_leaves_is_kept_whole(serve: Serve, connect: Any) -> None:
    hold = Hold()
    service = serve([[TextDelta("one "), hold, TextDelta("two")]])
    client = connect(service)
    with client.responses.create(model="scripted", input="x", stream=True) as stream:
        name = next(iter(stream)).response.id
        wait_for(hold.entered)

    hold.release()

    wait_until(lambda: client.responses.retrieve(name).status == "completed")
    assert client.responses.retrieve(name).output_text == "one two"


def test_an_answer_that_was_too_long_is_incomplete(serve: Serve, connect: Any) -> None:
    cut = Completion(message=Message.assistant("half"), finish_reason=FinishReason.LENGTH)
    client = connect(serve([cut, cut]))

    whole = client.responses.create(model="scripted", input="x")
    events = list(client.responses.create(model="scripted", input="x", stream=True))

    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert events[-1].type == "response.incomplete"


def test_a_failure_in_the_middle_is_the_last_event(serve: Serve, connect: Any) -> None:
    gone = BackendError("gone", kind=ErrorKind.TRANSPORT, retryable=False)
    service = serve([[TextDelta("half"), gone]])
    client = connect(service)

    events = list(client.responses.create(model="scripted", input="x", stream=True))

    assert [event.type for event in events[-3:]] == [
        "response.content_part.done", "response.output_item.done", "response.failed",
    ]  # fmt: skip
    failed = client.responses.retrieve(events[-1].response.id)
    assert (failed.status, failed.error.message) == ("failed", "gone")
    assert failed.output[0].status == "incomplete"


def test_what_is_not_stored_leaves_nothing(serve: Serve, connect: Any) -> None:
    service = serve()
    client = connect(service)

    answer = client.responses.create(model="scripted", input="a", store=False)

    assert answer.store is False
    assert service.get("/v1/sessions").json()["data"] == []
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="scripted", input="b", previous_response_id=answer.id)
    assert caught.value.code == "previous_response_not_found"


def test_an_agent_that_sends_all_again_has_one_conversation(serve: Serve, connect: Any) -> None:
    service = serve()
    client = connect(service, default_headers={"session-id": "talk"})
    history: list[Any] = [{"role": "developer", "content": "Rules."}]
    for text in "ab":
        history.append({"role": "user", "content": [{"type": "input_text", "text": text}]})
        answer = client.responses.create(
            model="scripted", input=history, store=False, prompt_cache_key="talk"
        )
        history += [item.model_dump(exclude_none=True) for item in answer.output]

    assert service.texts("talk") == ["a", "re: a", "b", "re: b"]


def test_what_agents_send_to_every_model_is_taken(serve: Serve, connect: Any) -> None:
    service = serve(["Done."])
    items = [
        {"role": "user", "content": "Patch it."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
        {"type": "function_call", "call_id": "c2", "name": "shell", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": {"exit": 0}},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    ]
    tools = [{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}]

    answer = connect(service).responses.create(
        model="scripted", input=items, tools=tools, reasoning={"effort": "xhigh"}, store=False
    )

    assert answer.output_text == "Done."
    (request,) = service.backend.requests  # type: ignore[attr-defined]
    said = [record.message for record in request.records]
    assert [message.role.value for message in said] == [
        "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert [message.text for message in said[2::2]] == ["ok", '{"exit":0}']
    assert request.options.effort is None


def test_a_response_is_forgotten_and_its_conversation_stays(serve: Serve, connect: Any) -> None:
    service = serve()
    client = connect(service)
    answer = client.responses.create(model="scripted", input="a")

    client.responses.delete(answer.id)

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    assert service.texts(answer.conversation.id) == ["a", "re: a"]


def test_input_items_and_tokens_are_told(serve: Serve, connect: Any) -> None:
    client = connect(serve())
    answer = client.responses.create(
        model="scripted",
        input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    )

    items = list(client.responses.input_items.list(answer.id, order="asc", limit=1))
    count = client.responses.input_tokens.count(model="scripted", input="Hello there")

    assert [item.content[0].text for item in items] == ["a", "b"]
    assert count.input_tokens > 2


def test_a_compacted_history_is_taken_back(serve: Serve, connect: Any) -> None:
    service = serve(["Ann likes parrots.", "Parrots."])
    client = connect(service)
    said = [{"role": "user", "content": f"{n} {'word ' * 300}"} for n in range(20)]

    compacted = client.responses.compact(model="scripted", input=said)
    answer = client.responses.create(
        model="scripted", input=[*[i.model_dump() for i in compacted.output], said[0]]
    )

    assert compacted.output[0].type == "compaction"
    assert answer.output_text == "Parrots."
    request = service.backend.requests[-1]  # type: ignore[attr-defined]
    assert "Ann likes parrots." in "".join(r.message.text for r in request.records)
    assert len(request.records) < 20


def test_another_tenants_response_is_not_found(serve: Serve, connect: Any, tmp_path: Any) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    ann, bob = (keys.create(tenant=name)[0] for name in ("ann", "bob"))
    service = serve(keys=keys.path)
    answer = connect(service, api_key=ann).responses.create(model="scripted", input="a")
    client = connect(service, api_key=bob)

    for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            ask(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="scripted", input="b", conversation=answer.conversation.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="scripted", input="b", previous_response_id=answer.id)


@pytest.mark.parametrize(
    ("body", "param", "error"),
    [
        ({"model": "none"}, "model", openai.NotFoundError),
        ({"input": []}, "input", openai.BadRequestError),
        ({"input": [{"type": "magic"}]}, "input.0", openai.BadRequestError),
        (
            {"input": [{"role": "user", "content": [{"type": "x"}]}]},
            "input.0",
            openai.BadRequestError,
        ),
        (
            {"conversation": "a", "previous_response_id": "b"},
            "previous_response_id",
            openai.BadRequestError,
        ),
        ({"previous_response_id": "b"}, "previous_response_id", openai.BadRequestError),
        ({"conversation": "none"}, None, openai.NotFoundError),
        ({"background": True, "store": False}, "background", openai.BadRequestError),
        ({"top_p": 3}, "top_p", openai.BadRequestError),
        (
            {"input": [{"type": "compaction", "encrypted_content": "?"}]},
            "input.0",
            openai.BadRequestError,
        ),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_and_makes_nothing(
    serve: Serve, connect: Any, body: dict[str, Any], param: str, error: type[openai.APIStatusError]
) -> None:
    service = serve()

    with pytest.raises(error) as caught:
        connect(service).responses.create(**{"model": "scripted", "input": "a", **body})

    assert caught.value.param == param
    assert service.get("/v1/sessions").json()["data"] == []


def test_a_conversation_takes_so_many_turns_and_no_more(serve: Serve, connect: Any) -> None:
    hold = Hold()
    service = serve([hold, "a"], bounds=Bounds(turns_per_conversation=1))
    client = connect(service)
    talk = client.conversations.create()
    client.responses.create(model="scripted", input="a", conversation=talk.id, background=True)
    wait_for(hold.entered)

    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="scripted", input="b", conversation=talk.id)
    hold.release()
