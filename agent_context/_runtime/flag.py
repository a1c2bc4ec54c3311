"""The flag of a stopped actor, at a tenth of the size of an event."""

from threading import Condition, Event

from agent_context._runtime.fork_safety import ForkLocal

# Waiting for an actor to stop is rare, so all flags share what it takes.
_any_set = ForkLocal(Condition)


class LightEvent(Event):
    """A `threading.Event` that is set once, and has no lock of its own."""

    # What `Event.__repr__` and `Event.isSet` look at.
    _flag = False

    def __init__(self) -> None:
        """Do not make the condition that an event has."""

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        condition = _any_set()
        with condition:
            self._flag = True
            condition.notify_all()

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        condition = _any_set()
        with condition:
            return condition.wait_for(self.is_set, timeout)
