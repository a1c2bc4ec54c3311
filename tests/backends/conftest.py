import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, address or proxy of whoever runs the tests."""
    vendors = ("DEEPSEEK", "OPENAI", "ZAI", "ZHIPUAI", "ZHIPU", "BIGMODEL")
    others = ("MOONSHOT", "MOONSHOTAI", "DASHSCOPE", "OPENROUTER")
    for vendor in vendors + others:
        for what in ("API_KEY", "BASE_URL", "API_BASE", "ORG_ID", "PROJECT_ID"):
            monkeypatch.delenv(f"{vendor}_{what}", raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
