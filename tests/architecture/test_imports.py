"""What importing the core brings along, and what it must not."""

import subprocess
import sys
from pathlib import Path

import pytest

CONTRACTS = Path(__file__).parents[2] / "pyproject.toml"

HEAVY = [
    "agent_context_backends",
    "aiohttp",
    "docstring_parser",
    "fastapi",
    "http.client",
    "httpcore",
    "httpcore2",
    "httpx",
    "httpx2",
    "mcp",
    "mcp_types",
    "openai",
    "prometheus_client",
    "psycopg",
    "requests",
    "snowballstemmer",
    "socketserver",
    "sqlite3",
    "starlette",
    "tiktoken",
    "typer",
    "urllib.request",
    "urllib3",
    "uvicorn",
    "xllamacpp",
]


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules in a new interpreter that has imported the core and nothing else."""
    program = "import sys; from agent_context import *; print(*sys.modules, sep='\\n')"

    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert finished.stderr == ""
    return set(finished.stdout.split())


@pytest.mark.parametrize("module", HEAVY)
def test_importing_the_core_does_not_load(module: str, loaded: set[str]) -> None:
    assert "agent_context" in loaded
    assert module not in loaded


def test_the_import_contracts_hold() -> None:
    # In a process of its own: it turns off the loggers of the one that it runs in.
    program = (
        "import sys; from importlinter.cli import lint_imports;"
        "sys.exit(lint_imports(sys.argv[1], no_cache=True))"
    )

    finished = subprocess.run(
        [sys.executable, "-c", program, str(CONTRACTS)], capture_output=True, text=True, check=False
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_a_backend_alone_makes_agents() -> None:
    program = (
        "from agent_context_backends.openai import OpenAIBackend;"
        "print(OpenAIBackend(api_key='none').as_agent('Be brief.', name='Ann'))"
    )

    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert finished.stdout == "<agent Ann>\n"


def test_no_layer_is_excused_from_its_place() -> None:
    assert "agent_context.backend ->" not in CONTRACTS.read_text()
