"""Event loops for tests that aren't asynchronous."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

R = TypeVar("R")


class IoThread:
    """An event loop in a thread of its own."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def run(self, action: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(100)

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
