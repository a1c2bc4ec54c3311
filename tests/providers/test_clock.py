from datetime import UTC, datetime, tzinfo

import pytest

from agent_context.agent import Agent
from agent_context.errors import InvalidOptions
from agent_context.providers.clock import ClockProvider
from agent_context_backends.scripted import ScriptedBackend


def at(zone: tzinfo) -> datetime:
    return datetime(2026, 11, 30, 23, 30, tzinfo=UTC).astimezone(zone)


def test_the_time_is_told_in_its_zone() -> None:
    assert ClockProvider(now=at).text() == "It is Monday, 2026-11-30 23:30 (UTC)."
    assert ClockProvider("Europe/Berlin", now=at).text() == (
        "It is Tuesday, 2026-12-01 00:30 (Europe/Berlin)."
    )


def test_facts_are_told_as_they_are_at_the_time() -> None:
    places = iter(["/a", "/b"])
    clock = ClockProvider(now=at, facts={"Host": "box", "Directory": lambda: next(places)})

    assert clock.text().splitlines()[1:] == ["Host: box", "Directory: /a"]
    assert clock.text().endswith("Directory: /b")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", ""])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidOptions, match=r"zone: .* Europe/Berlin is expected"):
        ClockProvider(zone)


async def test_what_stands_before_the_time_is_the_same_in_the_next_request() -> None:
    hours = iter([1, 2])

    def later(zone: tzinfo) -> datetime:
        return datetime(2026, 1, 1, next(hours), tzinfo=zone)

    backend = ScriptedBackend(["a", "b"])
    agent = Agent(backend, "Be kind.", context_providers=[ClockProvider(now=later)])
    session = agent.create_session()

    await agent.run("one", session=session)
    await agent.run("two", session=session)

    first, second = ([record.message.text for record in each.records] for each in backend.requests)
    assert first[-1] == "It is Thursday, 2026-01-01 01:00 (UTC)."
    assert second[: len(first) - 1] == first[:-1]
    assert second[-1] == "It is Thursday, 2026-01-01 02:00 (UTC)."
    assert not any("01:00" in text for text in second)
