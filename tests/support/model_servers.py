"""Model servers that nobody here wrote: llmock (PyPI) and aimock (npm)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

__all__ = ["aimock_server", "behave", "llmock_server"]


def llmock_server() -> Iterator[str]:
    """Yields the address of a llmock while it runs."""
    program = Path(sys.executable).with_name("llmock")
    if not program.exists():
        _missing("pip install llmock==0.2.2")
    port = _free_port()
    yield from _served(
        [str(program), "serve", "--port", str(port), "--context-window", "2000"], port
    )


def aimock_server(folder: Path, fixtures: Mapping[str, Any]) -> Iterator[str]:
    """Yields the address of an aimock that answers by `fixtures` while it runs."""
    program = os.environ.get("AIMOCK_BIN") or shutil.which("aimock")
    if not program:
        _missing("npm i @copilotkit/aimock@1.43.0, and AIMOCK_BIN=node_modules/.bin/aimock")
    answers, config = folder / "fixtures.json", folder / "aimock.json"
    answers.write_text(json.dumps(fixtures))
    config.write_text(json.dumps({"llm": {"fixtures": str(answers)}}))
    port = _free_port()
    yield from _served([str(program), "--config", str(config), "--port", str(port)], port)


def behave(url: str, **behaviour: Any) -> None:
    """Have a llmock do this next."""
    queued = httpx.post(f"{url}/_llmock/scenario", json={"behaviors": [behaviour]}, trust_env=False)
    assert queued.status_code == 201, queued.text


def _missing(why: str) -> None:
    """At home a server may be missing; in CI it may not."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def _served(command: list[str], port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(url, process)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert process.poll() is None, "the server has ended"
        try:
            httpx.get(url, trust_env=False)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the server didn't start")


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port
