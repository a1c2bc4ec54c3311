"""What Prometheus reads of a service."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from agent_context import events
from agent_context.events import ChangeEvent
from agent_context.messages import Completion

__all__ = ["Metrics"]


class Metrics:
    """Counters and gauges of one service, in a registry of their own."""

    def __init__(self, *, live: Callable[[], float], turns: Callable[[], float]) -> None:
        """`live` and `turns` are asked when somebody reads."""
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "context_actor_requests",
            "Requests, by route and status.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "context_actor_request_seconds",
            "Seconds until a response begins, by route.",
            ("route",),
            registry=self._registry,
        )
        self._tokens = Counter(
            "context_actor_tokens",
            "Tokens that vendors report, by model and kind.",
            ("model", "kind"),
            registry=self._registry,
        )
        self._events = Counter(
            "context_actor_events",
            "Changes of conversations that are worth counting.",
            ("kind",),
            registry=self._registry,
        )
        self.streams = Gauge(
            "context_actor_open_streams", "Open event streams.", registry=self._registry
        )
        self._gauge("live_conversations", "Conversations that are awake.", live)
        self._gauge("turns", "Turns that run or wait.", turns)

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        Gauge(f"context_actor_{name}", text, registry=self._registry).set_function(read)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """A response has begun."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_tokens(self, model: str, completion: Completion) -> None:
        """A turn has ended well."""
        usage = completion.usage
        for kind, tokens in (
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cached", usage.cached_tokens),
            ("cache_write", usage.cache_write_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if tokens:
                self._tokens.labels(model, kind).inc(tokens)

    def count_event(self, event: ChangeEvent) -> None:
        """A conversation has changed. Any thread may say so."""
        if isinstance(event, _COUNTED):
            self._events.labels(type(event).__name__).inc()

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)


_COUNTED = (
    events.Compressed,
    events.TurnFailed,
    events.TurnLost,
    events.Cancelled,
    events.PromptPrefixChanged,
    events.PromptCacheMiss,
)
