import pytest

from agent_context.errors import InvalidOptions
from agent_context.tools import Tool
from agent_context_backends.openai import OpenAIBackend
from tests.support.mock import Recorded, sent

pytestmark = pytest.mark.anyio

TOOL = Tool(name="f")


@pytest.fixture
def server() -> Recorded:
    return Recorded()


@pytest.fixture
def backend(server: Recorded) -> OpenAIBackend:
    return OpenAIBackend(api_key="sk-x", api="chat", transport=server)


async def test_a_plain_request(backend: OpenAIBackend, server: Recorded) -> None:
    body = await sent(backend, server, max_tokens=5)

    assert body == {
        "model": "gpt-5.4",
        "max_completion_tokens": 5,
        "messages": [{"role": "user", "content": "q"}],
    }
    assert str(server.requests[0].url) == "https://api.openai.com/v1/chat/completions"


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("gpt-4o-mini", {"temperature": 0.2, "top_p": 0.5}, {"temperature": 0.2, "top_p": 0.5}),
        ("gpt-4.1", {"thinking": False}, {}),
        ("gpt-4.1", {"effort": "none"}, {}),
        ("o3", {"effort": "low"}, {"reasoning_effort": "low"}),
        ("o3", {"temperature": 1}, {"temperature": 1.0}),
        ("gpt-5-mini", {"effort": "minimal"}, {"reasoning_effort": "minimal"}),
        ("gpt-5.2", {"temperature": 0}, {"temperature": 0.0}),
        ("gpt-5.4", {"thinking": True}, {"reasoning_effort": "medium"}),
        ("gpt-5.4", {"thinking": True, "effort": "high"}, {"reasoning_effort": "high"}),
        ("gpt-5.4", {"thinking": False}, {"reasoning_effort": "none"}),
        ("gpt-5.4-2026-03-05", {"effort": "minimal"}, {"reasoning_effort": "low"}),
        ("gpt-6-astra", {"effort": "max"}, {"reasoning_effort": "max"}),
        (
            "gpt-99",
            {"effort": "high", "temperature": 0.3},
            {"reasoning_effort": "high", "temperature": 0.3},
        ),
        (
            "gpt-4.1",
            {"response_format": {"type": "json_schema"}},
            {"response_format": {"type": "json_schema"}},
        ),
    ],
)
async def test_options_in_its_words(
    backend: OpenAIBackend,
    server: Recorded,
    model: str,
    options: dict[str, object],
    expected: dict[str, object],
) -> None:
    body = await sent(backend, server, model=model, **options)

    del body["messages"]
    assert body == {"model": model} | expected


@pytest.mark.parametrize(
    ("model", "options", "advice"),
    [
        ("gpt-4.1", {"thinking": True}, "gpt-5.4"),
        ("gpt-4.1", {"effort": "high"}, "gpt-5.4"),
        ("gpt-4.1", {"max_tokens": 40_000}, "32768"),
        ("gpt-4.1", {"stop": tuple("abcde")}, "at most 4"),
        ("gpt-5", {"thinking": False}, "can't be told not to think"),
        ("gpt-5", {"temperature": 0.5}, "only 1"),
        ("gpt-5", {"stop": "x"}, "no stop"),
        ("gpt-5.1", {"effort": "xhigh"}, "none, minimal, low, medium, high"),
        ("gpt-5.4", {"effort": "high", "temperature": 0.5}, "while it thinks"),
        ("gpt-6-astra", {"effort": "none"}, "not 'none'"),
        ("gpt-6-astra", {"temperature": 1}, "takes no temperature"),
        ("gpt-4.1", {"tools": (Tool(name="f" * 65),)}, "at most 64"),
    ],
)
async def test_what_it_would_refuse_is_refused_before(
    backend: OpenAIBackend, server: Recorded, model: str, options: dict[str, object], advice: str
) -> None:
    with pytest.raises(InvalidOptions, match=advice):
        await sent(backend, server, model=model, **options)

    assert server.requests == []


@pytest.mark.parametrize(
    ("model", "options", "effort"),
    [
        ("gpt-4.1", {}, None),
        ("gpt-5.2", {"effort": "high"}, "high"),
        ("gpt-5.4", {}, None),
        ("gpt-5.4", {"effort": "none"}, "none"),
        ("gpt-5.6-terra", {}, "none"),
        ("gpt-6-sol", {"thinking": False}, "none"),
    ],
)
async def test_tools_where_chat_completions_take_them(
    backend: OpenAIBackend,
    server: Recorded,
    model: str,
    options: dict[str, object],
    effort: str | None,
) -> None:
    body = await sent(backend, server, model=model, tools=(TOOL,), **options)

    assert body.get("reasoning_effort") == effort
    assert len(body["tools"]) == 1


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("gpt-5.4", {"effort": "high"}),
        ("gpt-5.6-sol", {"thinking": True}),
        ("gpt-6-astra", {}),
        ("gpt-6.2-astra", {"effort": "low"}),
    ],
)
async def test_tools_where_chat_completions_refuse_them(
    backend: OpenAIBackend, server: Recorded, model: str, options: dict[str, object]
) -> None:
    with pytest.raises(InvalidOptions, match="takes no tools"):
        await sent(backend, server, model=model, tools=(TOOL,), **options)

    assert server.requests == []


async def test_organisation_and_project_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, server: Recorded
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    monkeypatch.setenv("OPENAI_ORG_ID", "org")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")

    await sent(OpenAIBackend(transport=server), server)

    request = server.requests[0]
    assert request.url.host == "127.0.0.1"
    assert request.headers["openai-organization"] == "org"
    assert "openai-project" not in request.headers
    assert request.headers["authorization"] == "Bearer sk-env"


@pytest.mark.parametrize(
    ("model", "window", "output"),
    [
        ("gpt-4o-mini", 128_000, 16_384),
        ("gpt-4.1-nano", 1_047_576, 32_768),
        ("o4-mini", 200_000, 100_000),
        ("gpt-5-nano", 400_000, 128_000),
        ("gpt-6-astra", 1_050_000, 128_000),
        ("davinci", 128_000, 16_384),
    ],
)
def test_its_facts(model: str, window: int, output: int) -> None:
    facts = OpenAIBackend(api_key="k").model_facts(model)

    assert (facts.context_window, facts.max_output) == (window, output)
    assert facts.vocabulary == "o200k_base"


def test_a_missing_key_says_where_it_is_looked_for() -> None:
    with pytest.raises(InvalidOptions, match="OPENAI_API_KEY"):
        OpenAIBackend()


@pytest.mark.parametrize(
    ("model", "ratio", "write", "matches"),
    [
        ("gpt-4o", 0.5, 1.0, "beginning"),
        ("gpt-4.1", 0.25, 1.0, "beginning"),
        ("o3", 0.25, 1.0, "beginning"),
        ("gpt-5.5", 0.1, 1.0, "beginning"),
        ("gpt-5.6-sol", 0.1, 1.25, "breakpoints"),
        ("gpt-6.1-sol", 0.05, 1.25, "breakpoints"),
    ],
)
def test_what_its_cache_finds_and_costs(
    model: str, ratio: float, write: float, matches: str
) -> None:
    backend = OpenAIBackend(api_key="k")
    rule = backend.model_facts(model).cache

    assert rule is not None
    assert (rule.ratio, rule.write, rule.match_policy) == (ratio, write, matches)
    assert rule.round_to_cached(1_023) == 0
    assert rule.round_to_cached(1_200) == (1_152 if matches == "beginning" else 1_200)
    assert "2026" in rule.source
    assert backend.model_facts("llama").cache is None
