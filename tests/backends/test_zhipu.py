import pytest

from agent_context.errors import InvalidOptions
from agent_context.messages import Message
from agent_context.models import CachePolicy, ModelFacts
from agent_context.tools import Tool
from agent_context_backends.zhipu import ZhipuBackend
from tests.support.mock import Recorded, sent

pytestmark = pytest.mark.anyio

TOOL = Tool(name="f")
TURNED_OFF = {"type": "disabled"}
TURNED_ON = {"type": "enabled"}
CHINA = "https://open.bigmodel.cn/api/paas/v4"


@pytest.fixture
def server() -> Recorded:
    return Recorded()


@pytest.fixture
def backend(server: Recorded) -> ZhipuBackend:
    return ZhipuBackend(api_key="id.secret", transport=server)


async def test_a_plain_request(backend: ZhipuBackend, server: Recorded) -> None:
    body = await sent(backend, server, max_tokens=5, temperature=1)

    assert body == {
        "model": "glm-5.2",
        "max_tokens": 5,
        "temperature": 1.0,
        "messages": [{"role": "user", "content": "q"}],
    }
    assert str(server.requests[0].url) == f"{CHINA}/chat/completions"
    assert server.requests[0].headers["accept-language"] == "en-US,en"


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("glm-5.2", {"thinking": False}, {"thinking": TURNED_OFF}),
        ("glm-5.2", {"effort": "none"}, {"thinking": TURNED_OFF, "reasoning_effort": "none"}),
        ("glm-5.2", {"effort": "xhigh"}, {"thinking": TURNED_ON, "reasoning_effort": "xhigh"}),
        ("glm-5.3", {"effort": "medium"}, {"thinking": TURNED_ON, "reasoning_effort": "high"}),
        ("glm-5.3-flash", {"thinking": True}, {"thinking": TURNED_ON}),
        ("glm-4.7", {"effort": "none"}, {"thinking": TURNED_OFF}),
        ("glm-4.7-flash", {"top_p": 0.5, "stop": ("a",)}, {"top_p": 0.5, "stop": ["a"]}),
    ],
)
async def test_options_in_its_words(
    backend: ZhipuBackend,
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
        ("glm-5.2", {"temperature": 1.2}, "from 0 to 1"),
        ("glm-5.2", {"top_p": 0}, "from 0.01 to 1"),
        ("glm-5.2", {"seed": 1}, "temperature=0"),
        ("glm-5.2", {"max_tokens": 131_073}, "131072"),
        ("glm-5.2", {"response_format": {"type": "json_schema"}}, "json_object"),
        ("glm-5.2", {"tools": (TOOL,), "tool_choice": "none"}, "leave the tools out"),
        ("glm-5.2", {"tools": (TOOL,), "tool_choice": "required"}, "leave the tools out"),
        ("glm-5.2", {"tools": (Tool(name="f", strict=True),)}, "leave strict out"),
        ("glm-5.3", {"thinking": False}, "always thinks"),
        ("glm-5.3", {"effort": "none"}, "always thinks"),
        ("glm-4.7", {"effort": "high"}, "glm-5.2"),
    ],
)
async def test_what_it_would_refuse_or_ignore_is_refused_before(
    backend: ZhipuBackend, server: Recorded, model: str, options: dict[str, object], advice: str
) -> None:
    with pytest.raises(InvalidOptions, match=advice):
        await sent(backend, server, model=model, **options)

    assert server.requests == []


async def test_a_tool_that_is_not_strict_is_as_any(backend: ZhipuBackend, server: Recorded) -> None:
    body = await sent(backend, server, tools=(Tool(name="f", strict=False),))

    assert "strict" not in body["tools"][0]["function"]


async def test_there_is_always_a_user_message(backend: ZhipuBackend, server: Recorded) -> None:
    body = await sent(backend, server, Message.system("s"))

    assert "user" in [message["role"] for message in body["messages"]]


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("ZAI_API_KEY", "https://api.z.ai/api/paas/v4"),
        ("ZHIPUAI_API_KEY", CHINA),
        ("ZHIPU_API_KEY", CHINA),
        ("BIGMODEL_API_KEY", CHINA),
    ],
)
def test_each_key_goes_to_its_own_site(
    monkeypatch: pytest.MonkeyPatch, name: str, url: str
) -> None:
    monkeypatch.setenv(name, "id.secret")

    assert ZhipuBackend().base_url == url
    assert ZhipuBackend(base_url="http://localhost:1").base_url == "http://localhost:1"
    assert ZhipuBackend(api_key="given").base_url == CHINA


def test_a_missing_key_says_where_it_is_looked_for() -> None:
    with pytest.raises(InvalidOptions, match="ZAI_API_KEY or ZHIPUAI_API_KEY or ZHIPU_API_KEY"):
        ZhipuBackend()


def test_its_facts() -> None:
    backend = ZhipuBackend(api_key="k")

    assert backend.model_facts("glm-5.3-flashx").context_window == 1_000_000
    assert backend.model_facts("glm-4.6v").max_output == 32_768
    assert backend.model_facts("glm-4.5-air").context_window == 128_000
    assert backend.model_facts("glm-9").context_window == 128_000
    assert backend.model_facts(None).vocabulary == "glm4"


@pytest.mark.parametrize(
    ("model", "ratio", "price"),
    [
        ("glm-5.3", 0.186, 1.4),
        ("glm-5.3-flash", 0.2, 0.15),
        ("glm-5", 0.19, None),
        ("glm-4.7", 0.183, 0.6),
        ("glm-4.7-flash", 0.19, 0.0),
    ],
)
def test_what_its_cache_finds_and_costs(model: str, ratio: float, price: float | None) -> None:
    rule = ZhipuBackend(api_key="k").model_facts(model).cache

    assert rule is not None
    assert (rule.ratio, rule.price) == (ratio, price)
    assert (rule.round_to_cached(499), rule.round_to_cached(501)) == (0, 501)
    assert "2026" in rule.source


def test_a_cache_rule_of_one_s_own() -> None:
    rule = CachePolicy(ratio=0.5)
    facts = ModelFacts(context_window=1_000, max_output=100, cache=rule)

    backend = ZhipuBackend(api_key="k", models={"mine": facts})

    assert backend.model_facts("mine").cache is rule
