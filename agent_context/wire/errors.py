"""What went wrong, from what a vendor's server says about it. The tables are the knowledge.

Sources: api-docs.deepseek.com error codes (2026-10) and deepseek-recipe 0.2.0; openai 3.57 and
platform.openai.com (2026-11); docs.bigmodel.cn and docs.z.ai error codes (2026-10); public reports
of compatible servers' wordings (2026). A status alone decides nothing: empty accounts say 429 too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

from agent_context.errors import BackendError, ErrorKind
from agent_context.wire.lenient_json import as_count, as_list, as_mapping, loads_lenient

__all__ = ["error_from_response", "error_from_stream", "request_id_of"]


@dataclass(frozen=True, slots=True)
class _Classification:
    """What a failure is. `retryable` None leaves it to the kind."""

    kind: ErrorKind
    retryable: bool | None = None


_AUTH = _Classification(ErrorKind.AUTH)
_QUOTA = _Classification(ErrorKind.QUOTA)
_RATE = _Classification(ErrorKind.RATE_LIMITED)
_BUSY = _Classification(ErrorKind.OVERLOADED)
_FULL = _Classification(ErrorKind.CONTEXT_OVERFLOW)
_FILTERED = _Classification(ErrorKind.CONTENT_FILTERED)
_HISTORY = _Classification(ErrorKind.HISTORY_REJECTED)
_PARAMETER = _Classification(ErrorKind.UNSUPPORTED_PARAMETER)
_LOST = _Classification(ErrorKind.TRANSPORT)
_PROTOCOL = _Classification(ErrorKind.PROTOCOL)
_NEVER_FITS = _Classification(ErrorKind.RATE_LIMITED, retryable=False)

_CODES: dict[str, _Classification] = {
    # OpenAI and those who copy it
    "context_length_exceeded": _FULL,
    "invalid_api_key": _AUTH,
    "unsupported_country_region_territory": _AUTH,
    "insufficient_quota": _QUOTA,
    "billing_hard_limit_reached": _QUOTA,
    "credit_balance_exhausted": _QUOTA,
    "organization_spend_limit_exceeded": _QUOTA,
    "project_spend_limit_exceeded": _QUOTA,
    "organization_usage_limit_exceeded": _QUOTA,
    "content_policy_violation": _FILTERED,
    "content_filter": _FILTERED,
    **dict.fromkeys(("cyber_policy", "cyber_policy_violation"), _FILTERED),
    "invalid_prompt": _FILTERED,
    "bio_policy": _FILTERED,
    "misalignment_policy_violation": _FILTERED,
    "image_content_policy_violation": _FILTERED,
    "invalid_encrypted_content": _HISTORY,
    "model_not_found": _PARAMETER,
    "unsupported_parameter": _PARAMETER,
    "unsupported_value": _PARAMETER,
    "unknown_parameter": _PARAMETER,
    "server_is_overloaded": _BUSY,
    "service_unavailable": _BUSY,
    # Kimi, llama.cpp
    "exceeded_current_quota_error": _QUOTA,
    "exceed_context_size_error": _FULL,
    # Alibaba (help.aliyun.com, model studio, error codes, 2026)
    **dict.fromkeys(("Arrearage", "AllocationQuota.FreeTierOnly"), _QUOTA),
    **dict.fromkeys(("DataInspectionFailed", "data_inspection_failed"), _FILTERED),
    **dict.fromkeys(("Throttling", "Throttling.RateQuota", "Throttling.AllocationQuota"), _RATE),
    **dict.fromkeys(("InvalidApiKey", "invalid_api-key"), _AUTH),
    # Zhipu: business codes come with any status
    **dict.fromkeys(("1000", "1001", "1002", "1003", "1004", "1100"), _AUTH),
    **dict.fromkeys(("1110", "1111", "1112", "1121"), _AUTH),
    **dict.fromkeys(("1220", "1221", "1222"), _AUTH),
    "1113": _QUOTA,
    "1120": _BUSY,
    **dict.fromkeys(("1200", "1230", "1234"), _BUSY),
    "1211": _PARAMETER,
    "1231": _Classification(ErrorKind.PROTOCOL, retryable=True),
    "1261": _FULL,
    **dict.fromkeys(("1300", "1301"), _FILTERED),
    **dict.fromkeys(("1302", "1303"), _RATE),
    "1305": _BUSY,
    **dict.fromkeys(("1304", "1308", "1309", "1310"), _QUOTA),
    **dict.fromkeys((str(code) for code in range(1311, 1322)), _QUOTA),
}
"""Codes and types that say all there is to know."""

_PHRASES: tuple[tuple[_Classification | None, tuple[str, ...]], ...] = (
    (_NEVER_FITS, (r"request too large.*tokens per min",)),
    # Not what they seem to say.
    (None, (r"tokens per min", r"string too long")),
    (
        _FULL,
        (
            r"maximum (context|model|prompt) length",
            r"exceeds? (the |this model's |max(imum)? )*(context|input) (window|length|limit)",
            r"exceed(s|ed)? context (window|limit|length|size)",
            r"exceeds the maximum allowed length",
            r"reduce the length of the messages",
            r"exceeds the available context size",
            r"(greater|longer) than the (model's )?(context|maximum model) length",
            r"context (the )?overflow",
            r"reached context length",
            r"context length of only",
            r"exceeded model token limit",
            r"(prompt|input) (is )?too long",
            r"(number of|too many) input tokens",
            r"input tokens exceed",
            r"prompt token count of \d+ exceeds",
            r"exceeds the (limit|maximum number) of \d* ?(input )?tokens",
            r"`?inputs`? (tokens \+ `?max_new_tokens`? must be|must have less than)",
            r"too large for model with \d+ maximum context",
            r"size limit exceeded by \d+ tokens",
            r"current length is \d+ while limit is",
            r"prompt exceeds max length",
            r"range of input length",
            r"input token count.*exceeds",
            r"context window exceeds limit",
            r"model_context_window_exceeded",
        ),
    ),
    (
        _HISTORY,
        (
            r"failed to parse tool call arguments",
            r"(tool call|function)('s|\.|_call\.)? ?arguments.{0,40}(valid|parse|json)",
            r"in the thinking mode must be passed back",
            r"must be followed by tool messages",
            r"must be a response to a prece+ding message",
            r"tool_call_ids? did not have response",
            r"no tool (output|call) found for",
            r"duplicate 'call_id'",
            r"input items array must not be empty",
            r"encrypted content .* could not be verified",
            r"was provided without its required",
            r"duplicate value for 'tool_call_id'",
            r"'messages\[\d+\]\.tool_calls': empty array",
            r"invalid assistant message",
            r"content should be a string or a list",
            r"empty input messages",
            r"invalid value for 'content'",
            r"expected one of `system`",
            r"messages\s*参数非法",
            r"messages parameter is illegal",
            r"incorrect role information",
            r"tool_calls\s*字段不能同时为空",
            r"未正常接收到prompt参数",
            r"^messages(\[\d+\]|\.)",
        ),
    ),
    (_FILTERED, (r"content exists risk",)),
    (
        _QUOTA,
        (
            r"account is in good standing",
            r"insufficient (account )?(balance|credits?|funds)",
            r"(credit )?balance is too low",
            r"exceeded your current quota",
            r"requires more credits",
            r"^arrearage",
        ),
    ),
    (
        _PARAMETER,
        (
            r"thinking mode does not support",
            r"response_format type is unavailable",
            r"function tools with reasoning_effort",
            r"failed to deserialize",
            r"invalid max_tokens",
            r"supported api model names",
            r"tool names must be unique",
            r"unsupported (parameter|value)",
        ),
    ),
)
"""Wordings, tried in order; the last resort of vendors whose codes say nothing."""

_WORDINGS = tuple(
    (re.compile("|".join(phrases), re.IGNORECASE | re.DOTALL), verdict)
    for verdict, phrases in _PHRASES
)

_TYPES: dict[str, _Classification] = {
    "authentication_error": _AUTH,
    "permission_error": _AUTH,
    "rate_limit_error": _RATE,
    "rate_limit_exceeded": _RATE,
    "overloaded_error": _BUSY,
    "server_error": _BUSY,
    "internal_error": _BUSY,
    "unavailable_error": _BUSY,
    **dict.fromkeys(("1210", "1212", "1215"), _PARAMETER),
    **dict.fromkeys(("1213", "1214"), _HISTORY),
    **dict.fromkeys(("invalid_value", "string_above_max_length"), _PARAMETER),
}
"""Codes and types that say what is meant where the wording doesn't."""

_STATUS: dict[int, _Classification] = {
    401: _AUTH,
    402: _QUOTA,
    403: _AUTH,
    404: _PROTOCOL,
    405: _PROTOCOL,
    408: _LOST,
    409: _BUSY,
    # Bytes, and not tokens: a proxy's bound, as a rule, that a shorter history need not meet.
    413: _HISTORY,
    422: _PARAMETER,
    429: _RATE,
    434: _AUTH,
    435: _PARAMETER,
}

_REQUEST_IDS = ("x-request-id", "x-deepseek-request-id", "x-ds-trace-id", "request-id", "x-log-id")

_RESET = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_BEIJING = timezone(timedelta(hours=8))
_MOST_TEXT = 500
_MOST_TOKENS = 10**15


_SIZES = tuple(
    re.compile(re.sub("#([a-z]+)", r"(?P<\1>\\d[\\d,]*)", pattern), re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"context length is #window.{0,60}?total of (at least )?#needed",
        r"too large: #output.*context length is #window.{0,60}?has #input input",
        r"context length is #window.{0,200}?(contains|has) (at least )?#input (input )?tokens",
        r"context length is #window.{0,60}?(requested|resulted in)\D{0,9}#needed",
        r"context length of #window.{0,80}?total of #needed",
        r"prompt length is #window.{0,40}?contains #needed",
        r"\(length #needed\).{0,60}?length of #window",
        r"\(#needed( tokens)?\) (exceeds|is longer).{0,40}(context|allowed) length \(#window",
        r"token limit: #window \(requested: #needed",
        r"must be <= #window.{0,20}?given: #input `?inputs.{0,20}?and #output",
        r"less than #window tokens.{0,20}?given: #needed",
        r"too long: #needed tokens > #window",
        r"context limit: #input \+ #output > #window",
        r"\(#needed\) exceeds the maximum number of tokens allowed \(#window",
        r"contains #needed tokens.{0,60}?model with #window",
        r"tokens \(#needed\) exceed context window of #window",
        r"count of #needed exceeds the limit of #window",
        r"current length is #needed while limit is #window",
        r"n_keep: #needed.{0,9}n_ctx: #window",
        r"first #needed tokens.{0,90}?context length of only #window",
        r"input length should be \[\d+, ?#window\]",
        r"maximum (context|model|prompt) length (is|of) #window",
        r"context length of (only )?#window",
    )
)
"""How an overflow says what the window holds, and what was asked of it: the first that fits."""


@dataclass(frozen=True, slots=True)
class _ErrorPayload:
    """What the server said, wherever it put it."""

    message: str
    code: str = ""
    type: str = ""
    param: str = ""
    filtered: bool = False
    window: int | None = None
    needed: int | None = None


def error_from_response(
    status: int, headers: Mapping[str, str], body: bytes, *, vendor: str
) -> BackendError:
    """The error that an answer with a status other than 200 is."""
    lower = {name.lower(): value for name, value in headers.items()}
    said = _parse_payload(body, status)
    verdict = _classify(said, status)
    wait = _retry_after(lower)
    hint = _TOO_MANY_BYTES if (status, verdict) == (413, _HISTORY) else ""
    return BackendError(
        f"{vendor} answered {status}: {said.message}{hint}",
        kind=verdict.kind,
        vendor=vendor,
        status=status,
        code=said.code or said.type or None,
        request_id=request_id_of(lower),
        retry_after=_until_reset(said) if wait is None else wait,
        retryable=_SHOULD_RETRY.get(lower.get("x-should-retry", ""), verdict.retryable),
        **_sizes(said, verdict),
    )


_TOO_MANY_BYTES = (
    "; the request has more bytes than the server, or a proxy before it, takes: send smaller images"
    " or files, or their addresses"
)

_SHOULD_RETRY = {"true": True, "false": False}


def error_from_stream(error: object, *, vendor: str, request_id: str | None = None) -> BackendError:
    """The error that an answer of status 200 carries: an object or a mere text."""
    said = _to_payload(error)
    status = int(said.code) if re.fullmatch(r"[45]\d\d", said.code) else None
    verdict = _classify(said, status or 500)
    return BackendError(
        f"{vendor} broke its answer off: {said.message}",
        kind=verdict.kind,
        vendor=vendor,
        status=status,
        code=said.code or said.type or None,
        request_id=request_id,
        retry_after=_until_reset(said),
        retryable=verdict.retryable,
        **_sizes(said, verdict),
    )


def _sizes(said: _ErrorPayload, verdict: _Classification) -> dict[str, int | None]:
    """What an overflow says in numbers."""
    if verdict.kind is not ErrorKind.CONTEXT_OVERFLOW:
        return {}
    found = next((match for match in (size.search(said.message) for size in _SIZES) if match), None)
    told = {name: _figure(digits) for name, digits in found.groupdict().items()} if found else {}
    window, needed = told.get("window"), told.get("needed")
    if needed is None and "input" in told:
        needed = told["input"] + told.get("output", 0)
    return {
        "window": window if window is not None else said.window,
        "needed": needed if needed is not None else said.needed,
    }


def _figure(digits: str) -> int:
    return min(int(digits.replace(",", "")[:18]), _MOST_TOKENS)


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """The vendor's name for a request. The headers' names are in lower case."""
    return next((headers[name] for name in _REQUEST_IDS if headers.get(name)), None)


def _classify(said: _ErrorPayload, status: int) -> _Classification:
    if said.filtered:
        return _FILTERED
    return (
        _CODES.get(said.code)
        or _CODES.get(said.type)
        or _by_wording(said.message, status)
        or _TYPES.get(said.code)
        or _TYPES.get(said.type)
        or _by_param(said.param)
        or _by_status(status)
    )


def _by_wording(message: str, status: int) -> _Classification | None:
    for pattern, verdict in _WORDINGS:
        if pattern.search(message):
            return verdict
    if status == 404 and re.search(r"\bmodel\b", message, re.IGNORECASE):
        return _PARAMETER
    return None


def _by_param(param: str) -> _Classification | None:
    if not param:
        return None
    return _HISTORY if param.startswith(("messages", "input[")) else _PARAMETER


def _by_status(status: int) -> _Classification:
    if (known := _STATUS.get(status)) is not None:
        return known
    if status >= 500:
        return _BUSY
    return _PROTOCOL if status < 400 else _Classification(ErrorKind.UNKNOWN)


def _parse_payload(body: bytes, status: int) -> _ErrorPayload:
    try:
        value = loads_lenient(body)
    except ValueError:
        text = re.sub(r"<[^>]*>|\s+", " ", body[:4096].decode("utf-8", "replace")).strip()
        return _ErrorPayload(text[:_MOST_TEXT] or f"no text with status {status}")
    return _to_payload(as_mapping(value).get("error") or value)


def _to_payload(error: object) -> _ErrorPayload:
    error = next(iter(as_list(error)), error)
    fields = as_mapping(error)
    if "error" in fields and not fields.get("message"):
        return _to_payload(fields["error"])
    known = (fields.get("message"), fields.get("msg"), fields.get("detail"))
    message = next((text for text in known if text), error)
    if raw := as_mapping(fields, "metadata").get("raw"):  # what stands behind OpenRouter's error
        message = f"{message}: {raw}"
    return _ErrorPayload(
        str(message)[:_MOST_TEXT],
        code=_name(fields.get("code")),
        type=_name(fields.get("type")),
        param=_name(fields.get("param")),
        # OpenRouter says 403 and gives reasons (openrouter.ai/docs, 2026).
        filtered=bool(as_mapping(fields, "metadata").get("reasons")),
        # llama.cpp's exceed_context_size_error.
        window=as_count(fields.get("n_ctx")),
        needed=as_count(fields.get("n_prompt_tokens")),
    )


def _name(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from milliseconds, seconds or a date."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    return _seconds_until_date(value) if _number(value) is None else _number(value)


def _number(value: str) -> float | None:
    return float(value) if re.fullmatch(r"\s*\d{1,12}(\.\d*)?\s*", value) else None


def _seconds_until_date(value: str) -> float | None:
    if not value:
        return None
    from email.utils import parsedate_to_datetime  # rarely needed, and slow to load

    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - time.time())


def _until_reset(said: _ErrorPayload) -> float | None:
    """Seconds until the time that Zhipu's 1308 and 1310 name, taken to be Beijing's."""
    found = _RESET.search(said.message) if said.code in {"1308", "1310"} else None
    if found is None:
        return None
    try:
        when = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=_BEIJING)
    except ValueError:
        return None
    return max(0.0, when.timestamp() - time.time())
