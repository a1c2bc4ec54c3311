import pytest

from agent_context.errors import InvalidOptions
from agent_context.messages import Message, Origin, ToolCall
from agent_context.tools import Tool
from agent_context_backends.deepseek import DeepSeekBackend
from tests.support.mock import Recorded, sent

pytestmark = pytest.mark.anyio

TOOL = Tool(name="f", description="does")
TURNED_OFF = {"type": "disabled"}
TURNED_ON = {"type": "enabled"}


@pytest.fixture
def server() -> Recorded:
    return Recorded()


@pytest.fixture
def backend(server: Recorded) -> DeepSeekBackend:
    return DeepSeekBackend(api_key="sk-x", transport=server)


async def test_a_plain_request(backend: DeepSeekBackend, server: Recorded) -> None:
    body = await sent(backend, server, max_tokens=5)

    assert body == {
        "model": "deepseek-flash",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "q"}],
    }
    assert str(server.requests[0].url) == "https://api.deepseek.com/chat/completions"
    assert server.requests[0].headers["authorization"] == "Bearer sk-x"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"thinking": True}, {"thinking": TURNED_ON}),
        ({"thinking": False}, {"thinking": TURNED_OFF}),
        ({"effort": "none"}, {"thinking": TURNED_OFF}),
        ({"effort": "minimal"}, {"thinking": TURNED_ON, "reasoning_effort": "low"}),
        ({"effort": "medium"}, {"thinking": TURNED_ON, "reasoning_effort": "high"}),
        ({"effort": "xhigh"}, {"thinking": TURNED_ON, "reasoning_effort": "high"}),
        ({"effort": "max", "thinking": True}, {"thinking": TURNED_ON, "reasoning_effort": "max"}),
        ({"thinking": False, "temperature": 0.5}, {"thinking": TURNED_OFF, "temperature": 0.5}),
        ({"top_p": 0.97}, {"top_p": 0.97}),
        ({"stop": "x", "seed": 3}, {"stop": ["x"], "seed": 3}),
        (
            {"response_format": {"type": "json_object"}},
            {"response_format": {"type": "json_object"}},
        ),
        ({"extra": {"user_id": "u"}}, {"user_id": "u"}),
        ({"model": "deepseek-v4-pro"}, {"model": "deepseek-v4-pro"}),
    ],
)
async def test_options_in_its_words(
    backend: DeepSeekBackend,
    server: Recorded,
    options: dict[str, object],
    expected: dict[str, object],
) -> None:
    body = await sent(backend, server, **options)

    del body["messages"]
    assert body == {"model": "deepseek-flash"} | expected


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"temperature": 0.5}, "thinking=False"),
        ({"thinking": True, "temperature": 0.5}, "thinking=False"),
        ({"top_p": 0.5}, "top_p"),
        ({"thinking": False, "temperature": 2.5}, "from 0 to 2"),
        ({"max_tokens": 400_000}, "393216"),
        ({"thinking": False, "effort": "high"}, "contradict"),
        ({"tools": (TOOL,), "tool_choice": "required"}, "thinking=False"),
        ({"tools": (TOOL,), "tool_choice": "f"}, "thinking=False"),
        ({"tools": (TOOL,), "tool_choice": "g", "thinking": False}, "no tool of that name"),
        ({"tools": (TOOL, TOOL)}, "different names"),
        ({"tools": (Tool(name="a.b"),)}, "letters"),
        ({"tools": (Tool(name="f", strict=True),)}, "beta"),
        ({"tool_choice": "required"}, "without any tools"),
        ({"stop": tuple("abcdefghijklmnopq")}, "at most 16"),
        ({"response_format": {"type": "json_schema"}}, "json_object"),
        ({"extra": {"messages": []}}, "messages"),
        ({"extra": {"x": object()}}, "JSON"),
    ],
)
async def test_what_it_would_refuse_or_ignore_is_refused_before(
    backend: DeepSeekBackend, server: Recorded, options: dict[str, object], advice: str
) -> None:
    with pytest.raises(InvalidOptions, match=advice):
        await sent(backend, server, **options)

    assert server.requests == []


async def test_tools_in_its_words(backend: DeepSeekBackend, server: Recorded) -> None:
    body = await sent(backend, server, tools=(TOOL,), tool_choice="f", thinking=False)

    function = {
        "name": "f",
        "description": "does",
        "parameters": {"type": "object", "properties": {}},
    }
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}


async def test_strict_tools_are_taken_under_beta(server: Recorded) -> None:
    backend = DeepSeekBackend(
        api_key="k", base_url="https://api.deepseek.com/beta", transport=server
    )

    body = await sent(backend, server, tools=(Tool(name="f", strict=True),))

    assert body["tools"][0]["function"]["strict"] is True


async def test_its_own_reasoning_goes_back_and_other_s_stays(
    backend: DeepSeekBackend, server: Recorded
) -> None:
    def step(vendor: str, id: str) -> list[Message]:
        asked = Message.assistant(tool_calls=[ToolCall(id=id, name="f")], reasoning=f"of {vendor}")
        origin = Origin(vendor=vendor, model="m")
        return [asked.model_copy(update={"origin": origin}), Message.tool(id, "1")]

    messages = [Message.user("q"), *step("deepseek", "a"), *step("zhipu", "b")]

    body = await sent(backend, server, *messages, tools=(TOOL,))

    assert [m.get("reasoning_content") for m in body["messages"]] == [
        None,
        "of deepseek",
        None,
        "",
        None,
    ]
    assert body["messages"][1]["content"] == ""


def test_its_facts() -> None:
    backend = DeepSeekBackend(api_key="k")

    facts = backend.model_facts("deepseek-flash")

    assert (facts.context_window, facts.max_output) == (1_048_576, 393_216)
    assert facts.vocabulary == "deepseek_v3"
    assert facts.thinks
    assert backend.model_facts(None) == facts
    assert backend.model_facts("deepseek-ultra").context_window == 128_000


@pytest.mark.parametrize("name", ["DEEPSEEK_BASE_URL", "DEEPSEEK_API_BASE"])
def test_the_environment_may_say_where_and_who(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-env\n")
    monkeypatch.setenv(name, "http://127.0.0.1:1/v1/")

    backend = DeepSeekBackend()

    assert backend.base_url == "http://127.0.0.1:1/v1"


def test_a_missing_key_says_where_it_is_looked_for() -> None:
    with pytest.raises(InvalidOptions, match="DEEPSEEK_API_KEY"):
        DeepSeekBackend()


@pytest.mark.parametrize(
    ("model", "ratio", "price"),
    [("deepseek-flash", 1 / 50, 0.30), ("deepseek-v4-pro", 1 / 30, 1.32), ("other", 1 / 30, None)],
)
def test_what_its_cache_finds_and_costs(model: str, ratio: float, price: float | None) -> None:
    rule = DeepSeekBackend(api_key="k").model_facts(model).cache

    assert rule is not None
    assert (rule.ratio, rule.price, rule.match_policy) == (ratio, price, "requests")
    assert (rule.round_to_cached(1_023), rule.round_to_cached(1_100)) == (0, 1_088)
    assert "2026" in rule.source
