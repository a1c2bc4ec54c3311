"""A handler's exception is an answer, not the end of its actor."""

import logging
from typing import Any, TypeGuard

from pykka import Actor

from agent_context._runtime.future import Deferred, Failure, Reply
from agent_context._runtime.mailbox import Mailbox

logger = logging.getLogger(__name__)


class ErrorBoundary(Actor):
    """A mixin, placed before the actor class: `class Talk(ErrorBoundary, PoolActor)`.

    - What `on_receive` raises, whatever it is, fails the asker's reply; after a `tell` it is
      logged as an error. The actor goes on: `on_failure` is not called.
    - A `Reply` that `on_receive` returns answers the ask when it is settled itself.
    """

    def _handle_receive(self, message: object) -> object:
        try:
            result: object = super()._handle_receive(message)
        except BaseException as error:  # noqa: BLE001
            self._log(error, message)
            return Failure(_as_exception(error))
        return Deferred(result) if _is_reply(result) else result

    def _log(self, error: BaseException, message: object) -> None:
        inbox = self.actor_inbox
        asked = isinstance(inbox, Mailbox) and inbox.is_reply_expected()
        level = logging.DEBUG if asked else logging.ERROR
        logger.log(level, "%s failed at %s", self, type(message).__name__, exc_info=error)


def _is_reply(result: object) -> TypeGuard[Reply[Any]]:
    return isinstance(result, Reply)


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    # A CancelledError or SystemExit would cancel the asker's task, or end the asker's thread.
    wrapped = RuntimeError(f"the handler was left by {error!r}")
    wrapped.__cause__ = error
    return wrapped
