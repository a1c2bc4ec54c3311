"""The reply to an ask: a light pykka future that can be awaited, observed and chained."""

import asyncio
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from queue import Full
from threading import Lock, RLock, Thread, local
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from pykka import Future, Timeout

from agent_context._runtime.executor import blocking_section

logger = logging.getLogger(__name__)

T = TypeVar("T")

ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
_Failure = tuple[BaseException, TracebackType | None]
GetHook = Callable[[float | None], T]

_PENDING: Final = 0
_PROMISED: Final = 1
_DONE: Final = 2
_GIVEN_UP: Final = 3

LONGEST_WAIT: Final = 0.5
"""Seconds that a thread waits without looking for signals."""

MAX_NESTED: Final = 16
"""Callbacks inside one another, past which they wait: a chain of replies may have any length."""


class _Nesting(local):
    """The callbacks a thread is inside of, and those that it calls when it is out of them."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: deque[Callable[[], None]] = deque()


_nesting = _Nesting()


@dataclass(frozen=True, slots=True)
class Failure:
    """Set as a value, makes the reply fail: for a handler that must not raise."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Deferred:
    """Set as a value, makes the reply wait for another: for a handler that must not block.

    A bare reply stays a value, as futures in futures do in pykka.
    """

    reply: "Reply[Any]"


class _Hook:
    __slots__ = ("function", "lock")

    def __init__(self, function: GetHook[Any]) -> None:
        self.function = function
        self.lock = RLock()


class Reply(Future[T]):
    """A future with callbacks, whose `await` does not block the loop.

    Callbacks run in the thread that settles the reply, in the order they were added; those that
    settle replies whose callbacks settle others may form a chain of any length. A reply with a get
    hook (`map`, `filter`, `join`, `reduce`) stays lazy; when a callback or an `await` asks for it,
    a thread of its own computes it.
    """

    __slots__ = ("_callbacks", "_failure", "_hook", "_lock", "_state", "_value")

    # Without pykka's initialiser, which makes an object a reply for what `_hook` does.
    def __init__(self) -> None:
        self._lock = Lock()
        self._state = _PENDING
        self._value: Any = None
        self._failure: _Failure | None = None
        self._callbacks: list[Callable[[Reply[T]], object]] | None = None
        self._hook: _Hook | None = None

    def done(self) -> bool:
        """Tell whether `get` would return, or raise, at once."""
        return self._state >= _DONE

    def error(self) -> BaseException | None:
        """Its exception; None if it succeeded or isn't settled."""
        return self._failure[0] if self._failure is not None else None

    def get(self, *, timeout: float | None = None) -> T:
        """Wait for the value, or for the error; `pykka.Timeout` after `timeout` seconds."""
        if self._state < _DONE:
            if self._hook is not None:
                self._compute(self._hook, timeout)
            else:
                self._wait(timeout)
        return self._outcome()

    def set(self, value: T | Failure | Deferred | None = None) -> None:
        """Settle with a value, or as a `Failure` or `Deferred` says.

        Raises `queue.Full` the second time, but never after `set_error`: giving up on an answer
        must not harm whoever gives it.
        """
        if isinstance(value, Deferred):
            self._promise(value.reply)
        elif isinstance(value, Failure):
            self._settle(None, (value.error, value.error.__traceback__))
        else:
            self._settle(value, None)

    def set_exception(self, exc_info: ExcInfo | None = None) -> None:
        """Settle with an exception: the one being handled, if none is given."""
        kind, error, traceback = exc_info or sys.exc_info()
        if error is None:
            error = kind() if kind else RuntimeError("set_exception() without an exception")
        self._settle(None, (error, traceback))

    def set_error(self, error: BaseException) -> bool:
        """Give up waiting with `error`; False if an answer came, or was promised, before."""
        failure = (error, error.__traceback__)
        return self._finish(None, failure, expected=_PENDING, final=_GIVEN_UP)

    def set_get_hook(self, func: GetHook[T]) -> None:
        """Compute the value with `func(timeout)` when it is first wanted."""
        with self._lock:
            if self._state != _PENDING:
                raise Full
            self._hook = _Hook(func)

    def add_done_callback(self, callback: "Callable[[Reply[T]], object]") -> None:
        """Call `callback(self)` once it is settled: at once if it is; what it raises is logged."""
        with self._lock:
            waiting = self._state < _DONE
            computing = self._callbacks is not None
            if self._callbacks is not None:
                self._callbacks.append(callback)
            elif waiting:
                self._callbacks = [callback]
        if not waiting:
            self._call(callback)
        elif self._hook is not None and not computing:
            self._compute_beside()

    def __await__(self) -> Generator[Any, None, T]:
        if self._state < _DONE:
            yield from self._arrival()
        return self._outcome()

    __iter__ = __await__

    def _arrival(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()

        def wake(_: Reply[T]) -> None:
            # A closed loop has nobody left who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_release, arrived)

        self.add_done_callback(wake)
        try:
            yield from arrived.__await__()
        finally:
            self._forget(wake)

    def _wait(self, timeout: float | None) -> None:
        latch = Lock()
        latch.acquire()

        def open_latch(_: Reply[T]) -> None:
            latch.release()

        self.add_done_callback(open_latch)
        try:
            with nullcontext() if timeout is not None and timeout <= 0 else blocking_section():
                _wait_for(latch.acquire, timeout)
        finally:
            self._forget(open_latch)
        if self._state < _DONE:
            raise Timeout(f"{timeout} seconds")

    def _forget(self, callback: "Callable[[Reply[T]], object]") -> None:
        with self._lock:
            if self._callbacks is not None:
                self._callbacks = [each for each in self._callbacks if each is not callback]

    def _compute(self, hook: _Hook, timeout: float | None) -> None:
        if not _wait_for(hook.lock.acquire, timeout):
            raise Timeout(f"{timeout} seconds")
        try:
            if self._state < _DONE:
                self._finish(hook.function(timeout), None)
        finally:
            hook.lock.release()

    def _compute_beside(self) -> None:
        try:
            Thread(target=self._compute_for_callbacks, daemon=True).start()
        except RuntimeError as error:
            # Out of threads: whoever waits for a callback is told so.
            self._finish(None, (error, error.__traceback__))

    def _compute_for_callbacks(self) -> None:
        try:
            self.get()
        except BaseException as error:  # noqa: BLE001
            self._finish(None, (error, error.__traceback__))

    def _promise(self, other: "Reply[Any]") -> None:
        with self._lock:
            if self._state == _GIVEN_UP:
                return
            if self._state != _PENDING or self._hook is not None:
                raise Full
            self._state = _PROMISED
        other.add_done_callback(self._adopt)

    def _adopt(self, other: "Reply[Any]") -> None:
        self._finish(other._value, other._failure)  # noqa: SLF001

    def _settle(self, value: object, failure: _Failure | None) -> None:
        if self._hook is None and self._finish(value, failure, expected=_PENDING):
            return
        if self._state != _GIVEN_UP:
            raise Full

    def _finish(
        self,
        value: object,
        failure: _Failure | None,
        *,
        expected: int = _PROMISED,
        final: int = _DONE,
    ) -> bool:
        with self._lock:
            if self._state > expected:
                return False
            self._value, self._failure = value, failure
            self._state = final
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            self._call(callback)
        return True

    def _call(self, callback: "Callable[[Reply[T]], object]") -> None:
        if _nesting.depth >= MAX_NESTED:
            _nesting.waiting.append(lambda: self._call(callback))
            return
        _nesting.depth += 1
        try:
            callback(self)
        except BaseException:
            # It would otherwise end the actor whose thread settles this reply.
            logger.exception("A done callback failed")
        finally:
            _nesting.depth -= 1
        while not _nesting.depth and _nesting.waiting:
            _call_next()

    def _outcome(self) -> T:
        if self._failure is not None:
            error, traceback = self._failure
            # Raising adds frames: each `get` begins again from those of the failure.
            raise error.with_traceback(traceback)
        return cast("T", self._value)


def _call_next() -> None:
    call = _nesting.waiting.popleft()
    # One deep, so that the loop that calls this stays the only one.
    _nesting.depth += 1
    try:
        call()
    finally:
        _nesting.depth -= 1


def _release(arrived: "asyncio.Future[None]") -> None:
    if not arrived.done():
        arrived.set_result(None)


def _wait_for(acquire: Callable[..., bool], timeout: float | None) -> bool:
    """Wait for a lock, for `timeout` seconds or for ever; False if the time is up.

    A signal that arrives right before a wait begins doesn't end it, and on Windows none does: the
    wait is made of short ones, between which Python handles signals.
    """
    rest = math.inf if timeout is None else max(timeout, 0.0)
    end = time.monotonic() + rest
    while not acquire(timeout=min(rest, LONGEST_WAIT)):
        rest = max(end - time.monotonic(), 0.0)
        if rest == 0:
            return False
    return True
