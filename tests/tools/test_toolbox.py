"""A toolbox answers every call, whatever its tools do."""

import asyncio
import dataclasses
import math
import re
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from agent_context.errors import InvalidOptions, StoreUnavailable, ToolError
from agent_context.messages import ImagePart, Message, OpaquePart, TextPart, ToolCall
from agent_context.tools import (
    ApprovalDecision,
    InMemoryToolResults,
    Limits,
    RepeatedFailures,
    Tool,
    Toolbox,
    ToolContext,
    tool,
)
from tests.support.toolbox import call
from tests.support.waiting import WAIT, wait_for


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def text_of(toolbox: Toolbox, asked: ToolCall) -> str:
    outcome = await toolbox.run([asked])
    [result] = outcome.results
    return result.text


async def failure_of(toolbox: Toolbox, asked: ToolCall) -> str:
    outcome = await toolbox.run([asked])
    [result] = outcome.results
    assert outcome.failed == {asked.id}
    return result.text


async def test_each_call_gets_its_result_in_the_order_of_the_calls() -> None:
    second_is_done = asyncio.Event()

    @tool
    async def first() -> str:
        await second_is_done.wait()
        return "1"

    @tool
    async def second() -> str:
        second_is_done.set()
        return "2"

    told: list[Message] = []
    box = Toolbox([first, second])

    outcome = await box.run([call("first", "a"), call("second", "b")], done=told.append)

    assert [(item.tool_call_id, item.text) for item in outcome.results] == [("a", "1"), ("b", "2")]
    assert [item.text for item in told] == ["2", "1"]
    assert outcome.failed == frozenset()


async def test_without_parallel_calls_run_one_after_another() -> None:
    at_work: list[int] = []

    @tool
    async def work() -> int:
        at_work.append(1)
        await asyncio.sleep(0)
        return len(at_work) - at_work.pop()

    calls = [call("work", str(number)) for number in range(3)]

    outcome = await Toolbox([work], parallel=False).run(calls)

    assert [item.text for item in outcome.results] == ["0", "0", "0"]


async def test_no_more_calls_run_at_once_than_allowed() -> None:
    running, most = 0, 0

    @tool
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    calls = [call("work", str(number)) for number in range(9)]

    await Toolbox([work], limits=Limits(concurrency=3)).run(calls)

    assert most == 3


async def test_synchronous_tools_run_beside_each_other_and_the_loop() -> None:
    meeting = threading.Barrier(3, timeout=WAIT)

    @tool
    def meet() -> int:
        return meeting.wait()

    box = Toolbox([meet])
    run = asyncio.create_task(box.run([call("meet", "a"), call("meet", "b")]))
    await asyncio.to_thread(meeting.wait)

    assert (await run).failed == frozenset()


async def test_an_unknown_tool_is_answered_with_those_there_are() -> None:
    box = Toolbox([add, tool(lambda: None, name="subtract")])

    assert await failure_of(box, call("substract")) == (
        "There is no tool 'substract'. The tools are: add, subtract. Did you mean 'subtract'?"
    )
    assert "no tools at all" in await failure_of(Toolbox(), call("x"))


@pytest.mark.parametrize("approval", ["never", "require"])
async def test_a_call_whose_arguments_never_came_is_not_carried_out(approval: Any) -> None:
    ran: list[str] = []

    @tool(approval=approval)
    def drop(path: str = "/") -> None:
        ran.append(path)

    said = await failure_of(Toolbox([drop]), ToolCall(id="1", name="drop", arguments=" "))

    assert "never arrived" in said
    assert ran == []


async def test_a_tool_without_parameters_needs_no_arguments() -> None:
    box = Toolbox([tool(lambda: "ran", name="f")])

    assert await text_of(box, ToolCall(id="1", name="f", arguments="")) == "ran"


async def test_arguments_that_do_not_fit_are_answered_with_what_is_wrong() -> None:
    said = await failure_of(Toolbox([add]), call("add", a="x"))

    assert "- a: " in said
    assert 'got "x"' in said
    assert "- b: is required and missing" in said


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raising(error: BaseException, *, sync: bool) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    return fail if sync else fail_later


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("x"), "f failed: KeyError: 'x'"),
        (ToolError("Try tomorrow."), "Try tomorrow."),
        (TimeoutError("theirs"), "f failed: TimeoutError: theirs"),
        (SystemExit(3), "f failed: RuntimeError: .*3"),
        (Unspeakable(), "f failed: Unspeakable: "),
        (asyncio.CancelledError(), "f was cancelled before it had finished|f failed: .*Cancelled"),
        (ExceptionGroup("many", [ValueError("a")]), r"f failed: ExceptionGroup: many"),
    ],
)
async def test_what_a_tool_raises_is_its_result(
    error: BaseException, said: str, *, sync: bool
) -> None:
    box = Toolbox([tool(raising(error, sync=sync), name="f")])

    assert re.match(said, await failure_of(box, call("f")))


async def test_details_can_be_kept_from_the_model() -> None:
    box = Toolbox(
        [
            tool(raising(KeyError("secret"), sync=False), name="f"),
            tool(raising(ToolError("Say this."), sync=False), name="g"),
        ],
        limits=Limits(details=False),
    )

    assert await failure_of(box, call("f")) == "f failed"
    assert await failure_of(box, call("g")) == "Say this."


class Report(BaseModel):
    title: str


@dataclasses.dataclass
class Point:
    x: float


class Pair(msgspec.Struct):
    left: int


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("text", "text"),
        ("", "(nothing)"),
        (None, "ok"),
        (True, "true"),
        ({"a": ["ü", 1]}, '{"a":["ü",1]}'),
        ([], "[]"),
        (Report(title="x"), '{"title":"x"}'),
        ([Report(title="x"), Point(1.5)], '[{"title":"x"},{"x":1.5}]'),
        (Pair(left=1), '{"left":1}'),
        (math.nan, '"NaN"'),
        ("half a pair: \ud83d", "half a pair: ?"),
        (Message.assistant("from another agent"), "from another agent"),
    ],
)
async def test_what_a_tool_returns_becomes_text(value: object, said: str) -> None:
    assert await text_of(Toolbox([tool(lambda: value, name="f")]), call("f")) == said


async def test_a_tool_may_return_images() -> None:
    picture = ImagePart(url="data:image/png;base64,AA==")
    sound = OpaquePart(data={"type": "input_audio"})

    box = Toolbox([tool(lambda: ["Look:", picture, sound], name="f")])
    [result] = (await box.run([call("f")])).results

    assert result.parts == (TextPart(text="Look:"), picture, sound)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\x89PNG", "raw bytes"),
        ([b"\xff\xfe"], "list that can't be written as JSON"),
        (threading.Lock(), "lock that can't be written as JSON"),
    ],
)
async def test_what_cannot_be_read_is_a_failure_that_says_so(value: object, said: str) -> None:
    assert said in await failure_of(Toolbox([tool(lambda: value, name="f")]), call("f"))


async def test_a_tool_that_hangs_is_stopped_at_its_timeout() -> None:
    stopped = asyncio.Event()

    @tool(timeout=0.01)
    async def hang(ctx: ToolContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            assert ctx.cancelled
            stopped.set()

    assert await failure_of(Toolbox([hang]), call("hang")) == (
        "hang did not finish within 0.01 s and was stopped."
    )
    assert stopped.is_set()


async def test_a_tool_that_will_not_be_stopped_is_left_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent_context.tools.call._GRACE", 0.01)
    release = asyncio.Event()

    @tool(timeout=0.01)
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    said = await failure_of(Toolbox([stubborn]), call("stubborn"))
    release.set()

    assert (
        said
        == "stubborn did not finish within 0.01 s and can't be stopped: it may still be running."
    )


async def test_a_synchronous_tool_that_hangs_is_not_waited_for() -> None:
    release = threading.Event()

    @tool
    def hang(ctx: ToolContext) -> None:
        wait_for(release)
        assert ctx.cancelled

    said = await failure_of(Toolbox([hang], limits=Limits(timeout=0.01)), call("hang"))
    release.set()

    assert "it may still be running" in said


async def test_cancelling_a_run_cancels_its_tools_and_keeps_what_was_done() -> None:
    hanging, cancelled, added = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    told: list[Message] = []

    def done(result: Message) -> None:
        told.append(result)
        added.set()

    calls = [call("add", "a", a=1, b=2), call("hang", "b")]
    run = asyncio.create_task(Toolbox([add, hang]).run(calls, done=done))
    await hanging.wait()
    await added.wait()
    run.cancel()

    with pytest.raises(asyncio.CancelledError):
        await run
    assert cancelled.is_set()
    assert [item.text for item in told] == ["3"]


async def test_a_tool_may_report_how_far_it_is() -> None:
    heard: list[tuple[str, str]] = []

    @tool
    def work(ctx: ToolContext) -> None:
        ctx.report(f"half of {ctx.conversation_id}")

    box = Toolbox(
        [work], progress=lambda made, text: heard.append((made.id, text)), conversation_id="k"
    )
    await box.run([call("work")])

    assert heard == [("c1", "half of k")]


async def test_a_listener_that_fails_is_no_fault_of_the_tool() -> None:
    @tool
    def work(ctx: ToolContext) -> None:
        ctx.report("half")

    box = Toolbox([work], progress=lambda made, text: 1 / 0)

    assert await text_of(box, call("work")) == "ok"


@pytest.mark.parametrize("limits", [{"concurrency": 0}, {"max_result": 0}, {"timeout": 0}])
def test_limits_that_let_nothing_run_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptions, match=next(iter(limits))):
        Limits(**limits)


async def test_a_long_result_is_shortened_and_can_be_read_on() -> None:
    text = "".join(f"{number:04d}|" for number in range(100))
    box = Toolbox([tool(lambda: text, name="f", max_result=40)], limits=Limits(max_result=50))
    before = [item.name for item in box.tools]

    said = await text_of(box, call("f"))
    after = [item.name for item in box.tools]
    more = await text_of(box, call("read_tool_result", "c2", id="c1", offset=20))
    rest = await text_of(box, call("read_tool_result", "c3", id="c1", offset=490, limit=1000))

    assert said == (
        "0000|0001|0002|0003|\n[… 460 of 500 characters left out; read_tool_result shows them: "
        "id 'c1', offset 20 …]\n0096|0097|0098|0099|"
    )
    assert (before, after) == (["f"], ["f", "read_tool_result"])
    assert more == f"{text[20:70]}\n[characters 20 to 70 of 500]"
    assert rest == f"{text[490:]}\n[characters 490 to 500 of 500]"


async def test_the_reader_can_be_offered_from_the_start() -> None:
    assert [item.name for item in Toolbox([add], reader=True).tools] == ["add", "read_tool_result"]


async def test_an_id_that_servers_give_out_twice_names_two_results() -> None:
    keeper = InMemoryToolResults()
    texts = iter(["a" * 100, "b" * 100])
    box = Toolbox([tool(lambda: next(texts), name="f", max_result=10)], keeper=keeper)

    await box.run([call("f")])
    second = await text_of(box, call("f"))

    assert "id 'c1-2'" in second
    assert [await keeper.fetch(name) for name in ("c1", "c1-2")] == ["a" * 100, "b" * 100]


async def test_an_unknown_result_is_a_failure() -> None:
    assert "'nowhere'" in await failure_of(Toolbox(), call("read_tool_result", id="nowhere"))


async def test_the_memory_lets_go_of_the_oldest() -> None:
    keeper = InMemoryToolResults(room=10)

    for name in "abc":
        await keeper.keep(name, name * 5)

    assert [await keeper.fetch(name) for name in "abc"] == [None, "bbbbb", "ccccc"]


class FullKeeper(InMemoryToolResults):
    async def keep(self, id: str, text: str) -> None:
        raise StoreUnavailable("the disk is full")


async def test_a_result_that_cannot_be_kept_is_shortened_all_the_same() -> None:
    box = Toolbox([tool(lambda: "x" * 100, name="f", max_result=10)], keeper=FullKeeper())

    said = await text_of(box, call("f"))

    assert "could not be kept: the disk is full" in said


@tool(approval="require")
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


CALLS = (call("add", "a", a=1, b=2), call("delete", "d", path="/x"))


async def test_calls_that_need_approval_hold_up_the_whole_message() -> None:
    outcome = await Toolbox([add, delete]).run(CALLS)

    assert outcome.pending == (CALLS[1],)
    assert outcome.results == ()


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (True, "deleted /x"),
        (False, "The call of delete was not allowed, and nothing was done."),
        ("Not on Sundays.", "was not allowed, and nothing was done. The reason: Not on Sundays."),
        (Message.user("I did it myself."), "I did it myself."),
    ],
)
async def test_decided_calls_are_resumed(decision: ApprovalDecision, said: str) -> None:
    outcome = await Toolbox([add, delete]).resume(CALLS, {"d": decision})

    assert [item.tool_call_id for item in outcome.results] == ["a", "d"]
    assert outcome.results[0].text == "3"
    assert said in outcome.results[1].text


async def test_what_is_still_undecided_stays_pending() -> None:
    calls = (*CALLS, call("delete", "e", path="/y"))

    outcome = await Toolbox([add, delete]).resume(calls, {"d": True})

    assert outcome.pending == (calls[2],)


async def test_a_callback_decides_at_once() -> None:
    def by_path(asked: ToolCall) -> bool:
        return "/x" in asked.arguments

    async def later(asked: ToolCall) -> str:
        return "no"

    assert await text_of(Toolbox([delete], approve=by_path), CALLS[1]) == "deleted /x"
    assert "The reason: no" in await failure_of(Toolbox([delete], approve=later), CALLS[1])


@pytest.mark.parametrize("approve", [lambda asked: None, lambda asked: 1 / 0])
async def test_a_callback_that_does_not_decide_leaves_the_call_open(
    approve: Callable[[ToolCall], Any],
) -> None:
    outcome = await Toolbox([delete], approve=approve).run([CALLS[1]])

    assert outcome.pending == (CALLS[1],)


async def test_a_function_says_which_calls_need_approval() -> None:
    def outside(asked: ToolCall) -> bool:
        return "/tmp/" not in asked.arguments

    @tool(approval=outside)
    async def write(path: str) -> str:
        return path

    @tool(approval=lambda asked: bool(1 / 0))
    async def broken() -> None: ...

    box = Toolbox([write, broken])

    assert await text_of(box, call("write", path="/tmp/a")) == "/tmp/a"
    for asked in (call("write", path="/etc"), call("broken")):
        assert (await box.run([asked])).pending == (asked,)


async def test_nobody_is_asked_about_a_call_that_cannot_run() -> None:
    asked: list[ToolCall] = []

    def approve(made: ToolCall) -> bool:
        asked.append(made)
        return True

    box = Toolbox([delete], approve=approve)

    outcome = await box.run([call("delete", way="x"), call("remove", "2")])

    assert outcome.failed == {"c1", "2"}
    assert asked == []


async def test_calls_of_a_tool_that_only_the_program_can_run_are_pending() -> None:
    box = Toolbox([Tool(name="show")])
    asked = call("show")

    assert (await box.run([asked])).pending == (asked,)
    outcome = await box.resume([asked], {"c1": Message.user("shown")})
    assert outcome.results[0].text == "shown"


async def test_the_same_failure_three_times_gets_a_word_of_its_own() -> None:
    box, repeats = Toolbox([add]), RepeatedFailures()
    asked, other = call("add", a=1), call("add", a=2)

    said = [(await box.run([item], repeats=repeats)).results[0].text for item in [asked, other] * 3]

    assert [text.count("failed 3 times with the same error") for text in said] == [0, 0, 0, 0, 1, 1]


async def test_a_success_begins_the_count_anew() -> None:
    outcomes = iter([True, True, False, True])

    @tool
    async def flaky() -> None:
        if next(outcomes):
            raise ToolError("no")

    box, repeats = Toolbox([flaky]), RepeatedFailures(limit=3)

    said = [(await box.run([call("flaky")], repeats=repeats)).results[0].text for _ in range(4)]

    assert said == ["no", "no", "ok", "no"]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidOptions, match="two tools are called 'add'"):
        Toolbox([add, tool(lambda: None, name="add")])


def test_the_same_tool_twice_is_one_tool() -> None:
    assert Toolbox([add, add]).tools == (add.spec,)


async def test_functions_are_made_tools() -> None:
    def double(a: int) -> int:
        return 2 * a

    assert await text_of(Toolbox([double]), call("double", a=2)) == "4"
