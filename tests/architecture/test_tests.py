"""What holds for every test: none goes on as if it had waited, and the profile counts examples."""

import ast
from collections.abc import Iterator
from pathlib import Path

import execnet

from tests.support.reports import readable

TESTS = sorted(Path(__file__).parents[1].rglob("*.py"))
WAITS = {"wait", "wait_until_empty", "flush", "join"}
"""Methods that say by their result, or not at all, that the time given to them has passed."""


def is_wait(node: ast.expr) -> bool:
    """Whether this waits for a time, and then goes on whatever has happened."""
    if isinstance(node, ast.Await):
        return is_wait(node.value)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if node.func.attr == "to_thread" and node.args:
        target = node.args[0]
        return isinstance(target, ast.Attribute) and target.attr in WAITS and len(node.args) > 1
    receiver = node.func.value
    if isinstance(receiver, ast.Constant):  # ", ".join(names)
        return False
    of_asyncio = isinstance(receiver, ast.Name) and receiver.id == "asyncio"
    has_end = any(given.arg == "timeout" for given in node.keywords)
    return node.func.attr in WAITS and (has_end or (bool(node.args) and not of_asyncio))


def ignored_waits(source: str) -> Iterator[int]:
    """The lines that throw away what a wait answers: as statements, or as callbacks."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=call) | ast.Lambda(body=call) if is_wait(call):
                yield call.lineno
            case _:
                pass


def test_no_wait_is_ignored() -> None:
    found = [
        f"{path.parent.name}/{path.name}:{line}: use wait_for() or join() of tests.support.waiting"
        for path in TESTS
        if path.name != "waiting.py"
        for line in ignored_waits(path.read_text())
    ]

    assert found == [], "\n".join(found)


def test_ignored_waits_are_found_in_each_of_their_forms() -> None:
    ignored = (
        "event.wait(5)",
        "event.wait(timeout=5)",
        "thread.join(5)",
        "run(lambda: event.wait(5))",
        "async def f(): await asyncio.to_thread(event.wait, 5)",
        "async def f(): await asyncio.wait(tasks, timeout=5)",
    )
    minded = (
        "assert event.wait(5)",
        "wait_for(event)",
        "process.wait()",
        "thread.join()",
        "run(lambda: ', '.join(names))",
        "async def f(): await asyncio.wait(tasks)",
        "async def f(): await event.wait()",
        "async def f(): await asyncio.to_thread(barrier.wait)",
    )

    assert [source for source in ignored if not list(ignored_waits(source))] == []
    assert [source for source in minded if list(ignored_waits(source))] == []


def test_the_profile_says_how_many_examples_there_are() -> None:
    found = [
        f"{path.parent.name}/{path.name}: use examples() of tests.support.examples"
        for path in TESTS
        if path.name not in {"examples.py", Path(__file__).name}
        if "max_examples" in path.read_text()
    ]

    assert found == [], "\n".join(found)


def test_a_report_can_be_sent_whatever_was_logged() -> None:
    report = {"sections": [("log", "half a pair: \ud800")], "outcome": "passed", "duration": 0.5}

    sent = execnet.loads(execnet.dumps(readable(report)))

    assert sent == {**report, "sections": [("log", "half a pair: \\ud800")]}
