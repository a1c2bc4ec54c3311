"""Errors by class: every status, code and wording that vendors are known to use."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from agent_context.errors import BackendError, ErrorKind
from agent_context.wire.errors import error_from_response, error_from_stream
from tests.wire.fixtures import FIXTURES, payload

K = ErrorKind


def failure(
    status: int, body: object, *, vendor: str = "openai", headers: dict[str, str] | None = None
) -> BackendError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return error_from_response(status, headers or {}, raw, vendor=vendor)


def error(message: str = "no", **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


@pytest.mark.parametrize(
    ("name", "kind", "retryable"),
    [
        ("ds-reasoning-missing", K.HISTORY_REJECTED, False),
        ("ds-thinking-missing-anthropic", K.HISTORY_REJECTED, False),
        ("ds-responses-interleaved", K.HISTORY_REJECTED, False),
        ("ds-nonfunction-tool", K.UNSUPPORTED_PARAMETER, False),
        ("ds-overflow", K.CONTEXT_OVERFLOW, False),
        ("oa-tools-reasoning-400", K.UNSUPPORTED_PARAMETER, False),
        ("zp-1261-cn", K.CONTEXT_OVERFLOW, False),
        ("zp-1261-intl", K.CONTEXT_OVERFLOW, False),
        ("zp-1302", K.RATE_LIMITED, True),
        ("zp-1305-zh", K.OVERLOADED, True),
        ("zp-1234", K.OVERLOADED, True),
        ("zp-1113", K.QUOTA, False),
        ("zp-1214-after-tools", K.HISTORY_REJECTED, False),
        ("zp-developer-role", K.HISTORY_REJECTED, False),
        ("zp-empty-user", K.HISTORY_REJECTED, False),
    ],
)
def test_recorded_errors_have_their_class(name: str, kind: ErrorKind, retryable: bool) -> None:
    recorded = payload(name)

    found = failure(recorded["status"], recorded["body"], vendor=FIXTURES[name]["provider"])

    assert (found.kind, found.retryable) == (kind, retryable)
    assert found.status == recorded["status"]
    assert found.vendor == FIXTURES[name]["provider"]


@pytest.mark.parametrize("recorded", payload("overflow-wordings"))
def test_every_wording_of_overflow_is_known(recorded: dict[str, Any]) -> None:
    assert failure(recorded["status"], recorded["body"]).kind is K.CONTEXT_OVERFLOW


@pytest.mark.parametrize(
    ("status", "body", "kind", "retryable"),
    [
        (401, error(code="invalid_api_key"), K.AUTH, False),
        (403, error(), K.AUTH, False),
        (402, error("Insufficient Balance"), K.QUOTA, False),
        (
            404,
            error("The model `x` does not exist", code="model_not_found"),
            K.UNSUPPORTED_PARAMETER,
            False,
        ),
        (404, b"<html>nginx</html>", K.PROTOCOL, False),
        (405, b"<html>nginx</html>", K.PROTOCOL, False),
        (408, b"", K.TRANSPORT, True),
        (413, b"", K.HISTORY_REJECTED, False),
        (413, b"<html>413 Request Entity Too Large</html>", K.HISTORY_REJECTED, False),
        (413, error(type="request_too_large"), K.HISTORY_REJECTED, False),
        (413, error("maximum context length is 8192 tokens"), K.CONTEXT_OVERFLOW, False),
        (422, error(), K.UNSUPPORTED_PARAMETER, False),
        (429, error(code="rate_limit_exceeded", type="tokens"), K.RATE_LIMITED, True),
        (429, error(code="insufficient_quota"), K.QUOTA, False),
        (429, error(type="exceeded_current_quota_error"), K.QUOTA, False),
        (
            429,
            error("Request too large for m on tokens per min (TPM): Limit 1, Requested 2"),
            K.RATE_LIMITED,
            False,
        ),
        (429, error("Rate limit reached on tokens per min"), K.RATE_LIMITED, True),
        (500, error(), K.OVERLOADED, True),
        (503, b"overloaded", K.OVERLOADED, True),
        (529, error(type="overloaded_error"), K.OVERLOADED, True),
        (400, error(code="context_length_exceeded"), K.CONTEXT_OVERFLOW, False),
        (400, error(type="exceed_context_size_error", code=400), K.CONTEXT_OVERFLOW, False),
        (
            400,
            error("string too long", code="string_above_max_length"),
            K.UNSUPPORTED_PARAMETER,
            False,
        ),
        (400, error(code="content_policy_violation"), K.CONTENT_FILTERED, False),
        (400, error("Content Exists Risk"), K.CONTENT_FILTERED, False),
        (403, error(metadata={"reasons": ["violence"]}), K.CONTENT_FILTERED, False),
        (400, error(param="temperature"), K.UNSUPPORTED_PARAMETER, False),
        (400, error(param="messages.[1].role"), K.HISTORY_REJECTED, False),
        (400, error("something new"), K.UNKNOWN, False),
        (302, b"", K.PROTOCOL, False),
        (401, {"code": 1001, "msg": "no key"}, K.AUTH, False),
        (
            400,
            {"error": "prompt too long; exceeded max context length by 9 tokens"},
            K.CONTEXT_OVERFLOW,
            False,
        ),
        (
            400,
            {"detail": "This model's maximum context length is 10 tokens."},
            K.CONTEXT_OVERFLOW,
            False,
        ),
        (400, [{"error": {"message": "x", "code": "1301"}}], K.CONTENT_FILTERED, False),
        (400, error(code="1231"), K.PROTOCOL, True),
        (400, error("tools[0].type:type is illegal", code="1210"), K.UNSUPPORTED_PARAMETER, False),
        (400, error("messages 参数非法。请检查文档。", code="1214"), K.HISTORY_REJECTED, False),
    ],
)
def test_failures_have_their_class(
    status: int, body: object, kind: ErrorKind, retryable: bool
) -> None:
    found = failure(status, body)

    assert (found.kind, found.retryable) == (kind, retryable)


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"null", b"[]", b"3", b'{"error": null}', b"{}"]
)
def test_no_body_is_too_strange(body: bytes) -> None:
    found = failure(500, body)

    assert found.kind is K.OVERLOADED
    assert "500" in str(found)


def test_html_is_told_without_its_tags() -> None:
    found = failure(502, b"<html><body><h1>502 Bad\nGateway</h1></body></html>")

    assert str(found) == "openai answered 502: 502 Bad Gateway"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({}, None),
    ],
)
def test_the_wait_is_read_from_the_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert failure(429, error(), headers=headers).retry_after == seconds


def test_the_wait_may_be_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)

    wait = failure(503, error(), headers={"retry-after": date}).retry_after

    assert wait is not None
    assert 50 < wait <= 60


def test_the_wait_may_be_a_reset_time_in_the_text() -> None:
    reset = datetime.now(UTC) + timedelta(hours=9)
    text = f"Your limit will reset at {reset:%Y-%m-%d %H:%M:%S}"

    found = failure(429, error(text, code="1308"), vendor="zhipu")

    assert found.kind is K.QUOTA
    assert found.retry_after is not None
    assert abs(found.retry_after - 3600) < 5


def test_the_server_may_say_whether_to_retry() -> None:
    assert not failure(500, error(), headers={"x-should-retry": "false"}).retryable
    assert failure(400, error(), headers={"x-should-retry": "true"}).retryable


@pytest.mark.parametrize("name", ["x-request-id", "X-DeepSeek-Request-Id", "x-ds-trace-id"])
def test_request_ids_are_kept(name: str) -> None:
    assert failure(500, error(), headers={name: "r1"}).request_id == "r1"


@pytest.mark.parametrize(
    ("said", "kind", "status"),
    [
        ({"message": "TimeoutError", "type": "GatewayTimeout", "code": 504}, K.OVERLOADED, 504),
        ({"message": "no", "code": "429"}, K.RATE_LIMITED, 429),
        (
            {"message": "Your input exceeds the context window of this model."},
            K.CONTEXT_OVERFLOW,
            None,
        ),
        ({"code": "1234", "message": "网络错误"}, K.OVERLOADED, None),
        ("STREAM_EXPLODED", K.OVERLOADED, None),
    ],
)
def test_errors_inside_a_stream_have_their_class(
    said: object, kind: ErrorKind, status: int | None
) -> None:
    found = error_from_stream(said, vendor="openai")

    assert (found.kind, found.status) == (kind, status)


@pytest.mark.parametrize(
    ("body", "window", "needed"),
    [
        (payload("ds-overflow")["body"], 1_048_576, 1_100_000),
        (
            error(
                "This model's maximum context length is 128000 tokens. However, your messages "
                "resulted in 130000 tokens.",
                code="context_length_exceeded",
            ),
            128_000,
            130_000,
        ),
        (
            error(
                "This endpoint's maximum context length is 9 tokens. However, you requested about "
                "12 tokens"
            ),
            9,
            12,
        ),
        (
            error(
                "This model's maximum context length is 32768 tokens. However, you requested 0 "
                "output tokens and your prompt contains at least 32769 input tokens, for a total "
                "of at least 32769 tokens. Please reduce the length of the input prompt"
            ),
            32_768,
            32_769,
        ),
        (
            error(
                "'max_tokens' is too large: 5000. This model's maximum context length is 4096 "
                "tokens and your request has 100 input tokens (5000 > 4096 - 100)."
            ),
            4_096,
            5_100,
        ),
        (error("maximum context length is 8,192 tokens, you requested 9,000"), 8_192, 9_000),
        (error("maximum context length is 9" + "9" * 5_000), 10**15, None),
        (error("Input length (26) exceeds model's maximum context length (20)."), 20, 26),
        (error("Your request exceeded model token limit: 26 (requested: 30)"), 26, 30),
        (error("Range of input length should be [1, 258048]"), 258_048, None),
        (error(type="exceed_context_size_error", n_ctx=8, n_prompt_tokens=11), 8, 11),
        (error("Prompt exceeds max length", code="1261"), None, None),
        (error("the key has 12 tokens", code="invalid_api_key"), None, None),
    ],
)
def test_an_overflow_says_its_numbers(body: object, window: int | None, needed: int | None) -> None:
    found = failure(400, body)

    assert (found.window, found.needed) == (window, needed)


@pytest.mark.parametrize("code", ["1308", "1310"])
@pytest.mark.parametrize(
    "text", ["Your limit will reset at {}", "已达到使用上限，您的限额将在 {} 重置。"]
)
def test_a_used_up_plan_says_in_both_languages_when_it_is_renewed(code: str, text: str) -> None:
    reset = datetime.now(UTC) + timedelta(hours=9)

    found = failure(429, error(text.format(f"{reset:%Y-%m-%d %H:%M:%S}"), code=code))

    assert (found.kind, found.retryable) == (K.QUOTA, False)
    assert found.retry_after is not None
    assert abs(found.retry_after - 3600) < 5


@pytest.mark.parametrize(
    ("codes", "kind", "retryable"),
    [
        (("1000", "1001", "1002", "1003", "1004", "1100"), K.AUTH, False),
        (("1110", "1111", "1112", "1121", "1220", "1221", "1222"), K.AUTH, False),
        (("1120", "1200", "1230", "1234", "1305"), K.OVERLOADED, True),
        (("1113", "1304", "1308", "1309", "1310", "1311", "1321"), K.QUOTA, False),
        (("1210", "1211", "1212", "1215"), K.UNSUPPORTED_PARAMETER, False),
        (("1213", "1214"), K.HISTORY_REJECTED, False),
        (("1231",), K.PROTOCOL, True),
        (("1261",), K.CONTEXT_OVERFLOW, False),
        (("1300", "1301"), K.CONTENT_FILTERED, False),
        (("1302", "1303"), K.RATE_LIMITED, True),
    ],
)
@pytest.mark.parametrize("status", [400, 429, 500])
@pytest.mark.parametrize("text", ["no", "不行"])
def test_zhipu_s_codes_count_whatever_the_status_and_the_language(
    codes: tuple[str, ...], kind: ErrorKind, retryable: bool, status: int, text: str
) -> None:
    for code in codes:
        for body in (error(text, code=code), {"code": int(code), "msg": text}):
            found = failure(status, body, vendor="zhipu")
            assert (code, found.kind, found.retryable) == (code, kind, retryable)


@pytest.mark.parametrize(
    "code",
    [
        "insufficient_quota",
        "billing_hard_limit_reached",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
    ],
)
def test_an_empty_account_is_not_asked_again(code: str) -> None:
    assert failure(429, error(code=code), headers={"retry-after": "1"}).kind is K.QUOTA
    assert not failure(429, error(type=code)).retryable


OVERFLOWS = [
    ("LM Studio", ("Trying to keep the first 50 tokens when context the overflows. However, the "
     "model is loaded with context length of only 40 tokens, which is not enough."), 40, 50),
    ("LM Studio, kept", ("The number of tokens to keep from the initial prompt is greater than the "
     "context length (n_keep: 50>= n_ctx: 40)."), 40, 50),
    ("LM Studio, on its way", "Reached context length of 40 tokens with this model", 40, None),
    ("Ollama", "the input length exceeds the context length", None, None),
    ("Ollama, maximum", "input length exceeds maximum context length", None, None),
    ("llama-cpp-python", "Requested tokens (50) exceed context window of 40", 40, 50),
    ("SGLang", ("Input length (50 tokens) exceeds the maximum allowed length (40 tokens). Use a "
     "shorter input or enable --allow-auto-truncate."), 40, 50),
    ("SGLang, longer", ("The input (50 tokens) is longer than the model's context length (40 "
     "tokens)."), 40, 50),
    ("SGLang, total", ("Requested token count exceeds the model's maximum context length of 40 "
     "tokens. You requested a total of 50 tokens: 48 tokens from the input messages"), 40, 50),
    ("vLLM", ("The decoder prompt (length 50) is longer than the maximum model length of 40. Make "
     "sure that `max_model_len` is no smaller"), 40, 50),
    ("vLLM, input", ("This model's maximum context length is 40 tokens. However, your request has "
     "50 input tokens. Please reduce the length of the input messages."), 40, 50),
    ("TGI", ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 40. Given: 50 "
     "`inputs` tokens and 2 `max_new_tokens`"), 40, 52),
    ("TGI, input", "Input validation error: `inputs` must have less than 40 tokens. Given: 50",
     40, 50),
    ("xAI", "This model's maximum prompt length is 40 but the request contains 50 tokens.", 40, 50),
    ("Bedrock", "Input is too long for requested model.", None, None),
    ("Anthropic", "prompt is too long: 50 tokens > 40 maximum", 40, 50),
    ("Anthropic, total", "input length and `max_tokens` exceed context limit: 45 + 5 > 40", 40, 50),
    ("Google", "The input token count (50) exceeds the maximum number of tokens allowed (40).",
     40, 50),
    ("Mistral", ("Prompt contains 50 tokens and 0 draft tokens, too large for model with 40 "
     "maximum context length"), 40, 50),
    ("Copilot", "prompt token count of 50 exceeds the limit of 40", 40, 50),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "window", "needed"),
    [case[1:] for case in OVERFLOWS],
    ids=[case[0] for case in OVERFLOWS],
)
@pytest.mark.parametrize("status", [400, 422, 500])
def test_every_server_s_words_for_an_overflow_are_known(
    status: int, text: str, window: int | None, needed: int | None
) -> None:
    found = failure(status, error(text))

    assert (found.kind, found.retryable) == (K.CONTEXT_OVERFLOW, False)
    assert (found.window, found.needed) == (window, needed)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, error("Access denied, make sure your account is in good standing."), K.QUOTA),
        (400, error("Access denied", code="Arrearage"), K.QUOTA),
        (400, {"code": "Arrearage", "message": "Access denied"}, K.QUOTA),
        (403, error("free tier", code="AllocationQuota.FreeTierOnly"), K.QUOTA),
        (400, error("no", code="data_inspection_failed"), K.CONTENT_FILTERED),
        (400, error("no", code="Throttling.RateQuota"), K.RATE_LIMITED),
        (402, error("This request requires more credits"), K.QUOTA),
        (
            500,
            error("Failed to parse tool call arguments as JSON: [json.exception.parse_error.101]"),
            K.HISTORY_REJECTED,
        ),
        (
            400,
            error("messages: function.arguments must be valid JSON"),
            K.HISTORY_REJECTED,
        ),
        (500, error("Failed to parse input at pos 0"), K.OVERLOADED),
    ],
)
def test_what_is_no_passing_trouble_is_not_tried_again(
    status: int, body: object, kind: ErrorKind
) -> None:
    found = failure(status, body)

    assert found.kind is kind
    assert found.retryable is (kind in {K.RATE_LIMITED, K.OVERLOADED})


def test_an_error_nested_too_deeply_is_told_by_its_status() -> None:
    assert failure(429, b"[" * 100_000).kind is K.RATE_LIMITED
