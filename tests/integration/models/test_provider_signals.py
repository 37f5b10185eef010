"""What services say beside replies, or in their place, in words that nobody foresaw."""

import json
import re
from typing import Any

import pytest
from google.adk.integrations.openai import OpenAILlm, OpenAIResponsesLlm
from google.adk.models.anthropic_llm import AnthropicLlm
from google.adk.models.google_llm import Gemini
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from fanout.orchestrator.deep_agent import SubAgentSpec
from fanout.orchestrator.deep_agent.failures import (
    ModelContextExceeded,
    ModelDenied,
    ModelFailed,
    ModelQuotaUsedUp,
    ModelRefused,
    ModelUnresponsive,
)
from fanout.orchestrator.deep_agent.models.resolve import preload_client, resolve_model
from fanout.orchestrator.deep_agent.models.retries import UNUSABLE_ATTEMPTS, RetryPolicy
from tests.integration.models.model_server import Answer, call, call_with, text
from tests.integration.models.providers import (
    PROVIDERS,
    SOON,
    Provider,
    Serve,
    ask,
    run_agent,
    served,
    told,
)
from tests.unit.deep_agent.running import Run

STREAMING = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
OK = Answer([text("ok")])
PYTHON = ("Error", "NoneType", "object has no", "validation error")
serve = pytest.fixture(served)


@pytest.fixture(params=PROVIDERS, ids=lambda provider: provider.name)
def model_provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


def says_nothing_of_python(words: str) -> bool:
    return not any(word in words for word in PYTHON)


@STREAMING
async def test_an_unknown_end_of_a_reply_is_asked_for_again(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    write = call("write_file", file_path="/a", content="x")
    odd = Answer([text("half"), write], reason="network_error")
    with serve(odd, OK) as server:
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert run.text == "ok"
    assert run.results == []
    assert len(server.requests) == 2


@STREAMING
async def test_a_model_that_always_ends_so_is_told_and_then_ends_the_run_in_its_words(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    odd = Answer([call("write_file", file_path="/a", content="x")], reason="weird")
    with serve(*[odd] * 20) as server:
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert "weird" in told(server.requests[UNUSABLE_ATTEMPTS])
    assert run.events[-1].error_code == "MALFORMED_REPLY"
    assert 'finish reason "weird"' in str(run.events[-1].error_message)
    assert len(server.requests) == 4 * UNUSABLE_ATTEMPTS
    assert {result["status"] for result in run.results} == {"error"}


NOTHING = {
    "gemini": ['{"candidates": []}', "{}", '{"candidates": [{"content": null}]}'],
    "openai": [
        '{"choices": []}',
        '{"choices": null}',
        "{}",
        '{"choices": [{"message": null, "finish_reason": "stop"}]}',
    ],
    "responses": ['{"output": []}', '{"output": null}', "{}"],
    "anthropic": ['{"content": []}', "{}", '{"content": [{"type": "new", "x": 1}], "usage": null}'],
}


@pytest.mark.parametrize(
    ("name", "body"), [(name, body) for name, bodies in NOTHING.items() for body in bodies]
)
async def test_an_answer_with_no_reply_in_it_is_asked_for_again(
    serve: Serve, name: str, body: str
) -> None:
    model = next(each.larger for each in PROVIDERS if each.name == name)
    with serve(Answer(body=body), OK):
        assert (await run_agent(model)).text == "ok"
    with serve(*[Answer(body=body)] * 20):
        run = await run_agent(model)
    assert run.events[-1].error_code == "MALFORMED_REPLY"
    assert says_nothing_of_python(str(run.events[-1].error_message))


ERRORS = [
    {"error": {"message": "upstream is gone", "code": 502}},
    {"error": {"message": "upstream is gone"}},
    {"error": "upstream is gone"},
    {"error": [{"message": "upstream is gone"}]},
    [{"error": {"code": 503, "message": "upstream is gone"}}],
]


@STREAMING
async def test_an_error_with_a_good_status_is_the_error_that_it_is(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    failed = [Answer(body=json.dumps(body)) for body in ERRORS]
    for answer in failed:
        with serve(answer, OK):
            assert await ask(model_provider.larger, streaming=streaming) == "ok"
        with serve(*[answer] * 3), pytest.raises(ModelUnresponsive, match="upstream is") as caught:
            await ask(model_provider.larger, streaming=streaming)
        assert says_nothing_of_python(str(caught.value))


async def test_an_error_in_an_answer_counts_as_its_code_says(
    serve: Serve, model_provider: Provider
) -> None:
    body = json.dumps({"error": {"message": "no such parameter", "code": 400}})
    with serve(Answer(body=body)) as server, pytest.raises(ModelRefused, match="no such parameter"):
        await ask(model_provider.larger)
    assert len(server.requests) == 1


SAYINGS = [
    {"detail": "the gate is shut"},
    {"message": "the gate is shut"},
    {"code": 1234, "msg": "the gate is shut", "success": False},
    {"success": False, "errors": [{"code": 10000, "message": "the gate is shut"}], "result": None},
    {
        "id": "1",
        "choices": None,
        "base_resp": {"status_code": 1004, "status_msg": "the gate is shut"},
    },
]


@STREAMING
@pytest.mark.parametrize("body", SAYINGS, ids=str)
async def test_what_an_answer_without_a_reply_says_is_its_error(
    serve: Serve, model_provider: Provider, body: dict[str, Any], streaming: bool
) -> None:
    with serve(*[Answer(body=json.dumps(body))] * 3), pytest.raises(ModelUnresponsive) as caught:
        await ask(model_provider.larger, streaming=streaming)
    assert "(the gate is shut)" in str(caught.value)


async def test_a_balance_that_is_used_up_may_be_said_with_a_good_status(
    serve: Serve, model_provider: Provider
) -> None:
    body = json.dumps({"code": 1113, "msg": "Insufficient balance, please recharge"})
    with serve(Answer(body=body)) as server, pytest.raises(ModelQuotaUsedUp, match="recharge"):
        await ask(model_provider.larger)
    assert len(server.requests) == 1


@STREAMING
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"id": "1", "choices": [{"index": 0, "mess', 'does not answer.*"choices"'),
        ("", "empty|no reply came"),
    ],
    ids=["half", "empty"],
)
async def test_half_an_answer_or_none_is_asked_for_again(
    serve: Serve, model_provider: Provider, body: str, words: str, streaming: bool
) -> None:
    with serve(Answer(body=body), OK):
        assert (await run_agent(model_provider.larger, streaming=streaming)).text == "ok"
    with serve(*[Answer(body=body)] * 20):
        try:
            run = await run_agent(model_provider.larger, streaming=streaming)
        except ModelUnresponsive as failure:
            said = str(failure)
        else:
            said = str(run.events[-1].error_message)
    assert re.search(words, said)
    assert says_nothing_of_python(said)
    assert "char 0" not in said


STARTS = {
    "gemini": [{"candidates": [{"content": {"role": "model", "parts": [{"text": "half"}]}}]}],
    "openai": [{"choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": None}]}],
    "anthropic": [
        {
            "type": "message_start",
            "message": {"id": "m", "type": "message", "role": "assistant", "model": "m"}
            | {"content": [], "usage": {"input_tokens": 1, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "half"},
        },
    ],
}


@pytest.mark.parametrize("rest", ["", "<html>502 Bad Gateway</html>\n"], ids=["closed", "page"])
@pytest.mark.parametrize("name", STARTS)
async def test_a_stream_that_ends_without_an_end_is_no_answer(
    serve: Serve, name: str, rest: str
) -> None:
    provider = next(each for each in PROVIDERS if each.name == name)
    events = [
        (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n"
        for event in STARTS[name]
    ]
    half = Answer(body="".join(events) + rest, media_type="text/event-stream")
    with serve(half, OK) as server:
        run = await run_agent(provider.larger, streaming=True)
    assert run.text == "ok"
    assert len(server.requests) == 2


async def test_a_streamed_refusal_is_an_end_with_its_words(serve: Serve) -> None:
    events = [
        {"choices": [{"index": 0, "delta": {"refusal": each}, "finish_reason": None}]}
        for each in ("I will", " not.")
    ]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in (*events, end))
    with serve(Answer(body=body, media_type="text/event-stream")) as server:
        run = await run_agent("gpt-5", streaming=True)
    assert run.events[-1].error_code == "SAFETY"
    assert run.text == "I will not."
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [520, 524, 530, 599])
async def test_any_failure_of_a_server_is_retried(
    serve: Serve, model_provider: Provider, status: int
) -> None:
    with serve(Answer(status=status, body=f"error code: {status}"), OK):
        assert await ask(model_provider.larger) == "ok"


REFUSALS = [
    ("", "(400)"),
    ("null", "(400)"),
    ('"no such parameter"', "(400: no such parameter)"),
    ('{"errors": [{"message": "no tools", "code": 7003}], "success": false}', "(400: no tools)"),
    ('{"detail": [{"loc": ["body"], "msg": "str expected", "type": "t"}]}', "(400: str expected)"),
    ('{"problem": {"a": null}}', '(400: {"problem": {"a": null}})'),
    (
        '{"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "no x"}}}',
        "(400: Provider returned error: no x)",
    ),
]


@pytest.mark.parametrize(("body", "words"), REFUSALS)
async def test_a_refusal_has_the_words_of_the_service_and_no_others(
    serve: Serve, model_provider: Provider, body: str, words: str
) -> None:
    with serve(Answer(status=400, body=body)), pytest.raises(ModelRefused) as caught:
        await ask(model_provider.larger)
    assert str(caught.value).endswith(f"refused the request {words}.")


@pytest.mark.parametrize("status", [404, 405])
async def test_a_path_that_a_server_does_not_have_is_about_the_address(
    serve: Serve, model_provider: Provider, status: int
) -> None:
    for body in ('{"detail": "Not here"}', ""):
        with serve(Answer(status=status, body=body)), pytest.raises(ModelDenied, match="address"):
            await ask(model_provider.larger)


UNKNOWN = [
    {"message": "Invalid model name passed in model=x.", "code": "400"},
    {"message": "x is not a valid model ID", "code": 400},
    {"message": "Model Not Exist", "type": "invalid_request_error"},
    {"message": "The model `x` has been decommissioned and is no longer supported."},
    {"message": "API key expired.", "details": [{"reason": "API_KEY_INVALID"}]},
]


@pytest.mark.parametrize("error", UNKNOWN, ids=[each["message"] for each in UNKNOWN])
async def test_the_next_model_is_asked_if_a_model_is_unknown_whatever_the_status(
    serve: Serve, error: dict[str, Any]
) -> None:
    for first, second in (("gpt-5", "claude-sonnet-4-6"), ("gemini-2.5-flash", "gpt-5")):
        with serve(Answer(status=400, body=json.dumps({"error": error})), OK) as server:
            assert await ask(f"{first},{second}") == "ok"
        assert len(server.requests) == 2


PAGE = "<!doctype html><title>Welcome to nginx</title>"


@STREAMING
async def test_a_page_at_a_wrong_address_is_quoted(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    page = Answer(body=PAGE, media_type="text/html")
    with serve(page, OK):
        assert await ask(model_provider.larger, streaming=streaming) == "ok"
    with serve(*[page] * 3), pytest.raises(ModelUnresponsive, match="Check the address") as caught:
        await ask(model_provider.larger, streaming=streaming)
    assert says_nothing_of_python(str(caught.value))
    missing = Answer(status=404, body=PAGE, media_type="text/html")
    with serve(missing), pytest.raises(ModelDenied, match="its address") as caught:
        await ask(model_provider.larger, streaming=streaming)
    assert "Welcome to nginx" in str(caught.value)


@STREAMING
async def test_no_arguments_in_any_form_are_none(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    forms = ["", "null", "[]", '"{}"']  # one more would be a loop
    with serve(Answer([call_with("read_todos", given) for given in forms]), OK):
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert run.text == "ok"
    assert run.results == [{"todos": []}] * len(forms)


@STREAMING
async def test_arguments_that_are_encoded_twice_are_read(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    twice = json.dumps(json.dumps({"file_path": "/a", "content": "hü"}))
    with serve(Answer([call_with("write_file", twice)]), OK):
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert [result["status"] for result in run.results] == ["success"]


@STREAMING
@pytest.mark.parametrize("given", ['["/"]', "{'path': "])
async def test_arguments_that_are_no_object_are_sent_back_and_nothing_is_done(
    serve: Serve, model_provider: Provider, given: str, streaming: bool
) -> None:
    odd = Answer([call("write_file", file_path="/a", content="x"), call_with("read_todos", given)])
    with serve(odd, Answer([call("ls", path="/")]), OK) as server:
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert run.text == "ok"
    assert "read_todos begin with" in told(server.requests[1])
    rejected, listed = run.results
    assert rejected["status"] == "error"
    assert listed["entries"] == []


@STREAMING
async def test_arguments_that_json_cannot_hold_are_sent_back(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    odd = Answer([call_with("read_todos", '{"a": [NaN, 1e999]}')])
    with serve(odd, OK) as server:
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert run.text == "ok"
    assert "read_todos begin with" in told(server.requests[1])


WITH_NUMBER = {
    "gemini": {
        "candidates": [
            {"content": {"parts": [{"functionCall": {"id": 7, "name": "ls", "args": {}}}]}}
        ]
    },
    "openai": {
        "choices": [
            {
                "message": {
                    "tool_calls": [
                        {"id": 7, "type": "function", "function": {"name": "ls", "arguments": "{}"}}
                    ]
                },
                "finish_reason": "tool_calls",
            }
        ]
    },
    "anthropic": {
        "content": [{"type": "tool_use", "id": 7, "name": "ls", "input": {}}],
        "stop_reason": "tool_use",
    },
}


@pytest.mark.parametrize("name", WITH_NUMBER)
async def test_the_number_of_a_call_may_be_a_number(serve: Serve, name: str) -> None:
    provider = next(each for each in PROVIDERS if each.name == name)
    with serve(Answer(body=json.dumps(WITH_NUMBER[name])), OK):
        run = await run_agent(provider.larger)
    assert run.text == "ok"
    assert len(run.results) == 1


async def test_a_call_without_a_name_is_sent_back(serve: Serve, model_provider: Provider) -> None:
    with serve(Answer([call("", path="/")]), OK):
        run = await run_agent(model_provider.larger)
    assert run.text == "ok"
    assert "error" in run.results[0]


USED_UP = [
    (
        429,
        {"message": "You exceeded your current quota, see billing.", "code": "insufficient_quota"},
    ),
    (400, {"message": "Hard limit.", "code": "billing_hard_limit_reached"}),
    (400, {"message": "Your credit balance is too low to access the API."}),
    (402, {"message": "Payment is due."}),
    (429, {"message": "Suspended.", "type": "exceeded_current_quota_error"}),
    (400, {"message": "Budget has been exceeded! Current cost: 10.1, Max budget: 10.0"}),
    (400, {"message": "Access denied.", "code": "Arrearage"}),
    (429, {"message": "Too many tokens per day, please wait before trying again."}),
    (429, {"message": "This is a trial key, limited to 1000 calls / month."}),
    (429, {"message": "Rate limit of 50 exceeded. Please wait 50000 seconds before retrying."}),
    (
        429,
        {"message": "No more today.", "details": [{"violations": [{"quotaId": "RequestsPerDay"}]}]},
    ),
]


@pytest.mark.parametrize(
    ("status", "error"), USED_UP, ids=[words["message"] for _, words in USED_UP]
)
async def test_a_quota_that_is_used_up_is_not_asked_again(
    serve: Serve, model_provider: Provider, status: int, error: dict[str, Any]
) -> None:
    answer = Answer(status=status, body=json.dumps({"error": {"type": "some", **error}}))
    with serve(answer) as server, pytest.raises(ModelQuotaUsedUp) as caught:
        await ask(model_provider.larger)
    assert error["message"] in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "wait", ["soon", "nan", "inf", "-5", "Sat, 28 Nov 2020 10:00:00 -0000", "28 Nov 2020", ""]
)
async def test_a_wait_that_says_nothing_is_none(
    serve: Serve, model_provider: Provider, wait: str
) -> None:
    limited = Answer(status=429, headers={"Retry-After": wait})
    with serve(limited, OK):
        assert await ask(model_provider.larger) == "ok"
    with serve(*[limited] * 3), pytest.raises(ModelUnresponsive, match="429"):
        await ask(model_provider.larger)


async def test_a_rate_that_is_called_a_quota_is_waited_for(
    serve: Serve, model_provider: Provider
) -> None:
    error = {"message": "Allocated quota exceeded.", "code": "Throttling.AllocationQuota"}
    with serve(Answer(status=429, body=json.dumps({"error": error})), OK):
        assert await ask(model_provider.larger) == "ok"


class Limiter:
    """Notes which models were slowed down."""

    def __init__(self) -> None:
        self.slowed: list[str] = []

    async def enter(self, request: str, model: str, tokens: int) -> None:
        del request, model, tokens

    async def settle(self, request: str, model: str, tokens: int, used: int) -> None:
        del request, model, tokens, used

    async def cut(self, request: str, model: str, tokens: int, asked_seconds: float | None) -> None:
        del request, tokens, asked_seconds
        self.slowed.append(model)


async def test_a_used_up_quota_slows_no_model_and_the_next_one_answers(serve: Serve) -> None:
    limiter, request = Limiter(), LlmRequest(contents=[types.UserContent("go")])
    body = json.dumps({"error": {"message": "no quota", "code": "insufficient_quota"}})
    names = "gpt-4o,claude-sonnet-4-6"
    with serve(Answer(status=429, body=body), OK) as server:
        model = resolve_model(names, agent_name="a", retries=SOON, rate_limiter=limiter)
        replies = [reply async for reply in model.generate_content_async(request)]
    assert replies[-1].content.parts[0].text == "ok"
    assert len(server.requests) == 2
    assert limiter.slowed == []


TOO_LONG = [
    (400, {"error": {"code": 400, "message": "too big", "type": "exceed_context_size_error"}}),
    (400, {"object": "error", "message": "This model's maximum context length is 9 tokens."}),
    (400, {"error": "Trying to keep the first 9 tokens, the context has only 8, not enough"}),
    (500, {"error": "the input length exceeds the context length"}),
    (422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 9. Given: 10"}),
    (400, {"error": {"message": "Input is too long for requested model.", "code": None}}),
    (413, {"error": {"message": "no more"}}),
    (429, {"error": {"message": "Request too large on tokens per min: Limit 3, Requested 5."}}),
    (400, {"detail": {"error": "Requested input length 9 exceeds maximum input length 8"}}),
    (400, {"error": {"message": "Failed", "metadata": {"raw": "prompt is too long: 9 tokens"}}}),
]


async def test_a_request_that_is_too_long_is_known_in_any_words(
    serve: Serve, model_provider: Provider
) -> None:
    for status, body in TOO_LONG:
        answer = Answer(status=status, body=json.dumps(body))
        with serve(answer) as server, pytest.raises(ModelContextExceeded):
            await ask(model_provider.larger)
        assert len(server.requests) == 1


async def test_a_guess_costs_one_attempt_and_then_the_service_has_its_own_words(
    serve: Serve, model_provider: Provider
) -> None:
    answer = Answer(status=422, body=json.dumps({"error": "inputs must have less than 9 tokens"}))
    with serve(answer, OK):
        assert (await run_agent(model_provider.larger)).text == "ok"
    with serve(answer, answer) as server, pytest.raises(ModelContextExceeded, match="422: inputs"):
        await run_agent(model_provider.larger)
    assert len(server.requests) == 2


async def test_a_rejection_after_a_shorter_request_passed_may_be_its_length(
    serve: Serve, model_provider: Provider
) -> None:
    step, no = Answer([call("ls", path="/")]), Answer(status=400)
    with serve(step, no, OK):
        assert (await run_agent(model_provider.larger)).text == "ok"
    with serve(step, no, no), pytest.raises(ModelContextExceeded, match="400: not now"):
        await run_agent(model_provider.larger)


async def test_a_rejection_of_a_request_near_the_window_may_be_its_length(
    serve: Serve, model_provider: Provider
) -> None:
    request = LlmRequest(contents=[types.UserContent("word " * 1_000_000)])
    with serve(Answer(status=400)):
        model = resolve_model(model_provider.larger, agent_name="a", retries=SOON)
        with pytest.raises(ModelContextExceeded, match="400: not now"):
            _ = [reply async for reply in model.generate_content_async(request)]


@pytest.mark.parametrize("status", [500, 520])
async def test_any_failure_of_a_request_above_the_window_may_be_its_length(
    serve: Serve, model_provider: Provider, status: int
) -> None:
    for count in (1_000_000, 10):
        request = LlmRequest(contents=[types.UserContent("word " * count)])
        with serve(*[Answer(status=status)] * 3):
            await preload_client(model_provider.larger)
            model = resolve_model(model_provider.larger, agent_name="a", retries=SOON)
            with pytest.raises(ModelFailed, match="not now") as caught:
                _ = [reply async for reply in model.generate_content_async(request)]
        assert isinstance(caught.value, ModelContextExceeded) == (count > 10)


@STREAMING
async def test_a_final_answer_that_was_cut_is_continued(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    with serve(Answer([text("one, two, th")], is_cut=True), Answer([text("ree, four")])) as server:
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert run.text == "one, two, three, four"
    assert "was cut at 10 tokens" in told(server.requests[1])


@STREAMING
async def test_the_limit_of_a_reply_is_in_each_request(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    """Under whatever name the provider has for it."""
    request = LlmRequest(contents=[types.UserContent("go")])
    with serve(OK) as server:
        await preload_client(model_provider.larger)
        model = resolve_model(
            model_provider.larger, agent_name="a", retries=SOON, max_output_tokens=4321
        )
        _ = [reply async for reply in model.generate_content_async(request, stream=streaming)]
    assert "4321" in json.dumps(server.requests[0])


@STREAMING
async def test_no_call_of_a_reply_that_is_always_cut_is_carried_out(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    cut = Answer([call("write_file", file_path="/a", content="x")], is_cut=True)
    with serve(*[cut] * 9) as server:
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert len(server.requests) == 4
    assert run.events[-1].error_code == "REPLY_CUT"
    assert "output limit (10 tokens): ask for less at once, or raise max_output_tokens." in str(
        run.events[-1].error_message
    )
    assert not run.events[-1].get_function_calls()
    assert [result["status"] for result in run.results] == ["error"] * 3


async def test_a_stream_without_an_end_is_asked_for_again_and_its_calls_are_not_made(
    serve: Serve, model_provider: Provider
) -> None:
    """As proxies end it, whose own connection to the service broke."""
    for part in (call("write_file", file_path="/a", content="x"), text("half an ans")):
        with serve(Answer([part], has_no_end=True), OK) as server:
            run = await run_agent(model_provider.larger, streaming=True)
        assert run.text == "ok"
        assert run.results == []
        assert len(server.requests) == 2


@STREAMING
async def test_calls_with_the_same_id_are_told_apart(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    """Some models number the calls of each reply from 0."""
    first, second = call("read_todos"), call("ls", path="/")
    for made in (first, second):
        made["functionCall"]["id"] = "call_0"
    answers = [Answer([first]), Answer([second])]
    with serve(*answers, OK) as server:
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert [sorted(result) for result in run.results] == [["todos"], ["entries", "status"]]
    assert len(server.requests) == 3
    made = {each.id for event in run.events for each in event.get_function_calls()}
    assert len(made) == 2


STOPPED = {"gemini": "RECITATION", "openai": "content_filter", "anthropic": "refusal"}


@STREAMING
async def test_a_reply_that_the_service_stopped_is_an_end_and_its_calls_are_not_made(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    reason = STOPPED.get(model_provider.name, "content_filter")
    stopped = Answer([text("I"), call("write_file", file_path="/a", content="x")], reason=reason)
    with serve(stopped) as server:
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert len(server.requests) == 1
    assert run.results == []
    assert run.events[-1].error_code in {"SAFETY", "RECITATION"}


def adk_objects() -> dict[str, Any]:
    """Models as a program makes them, without a name of ours."""
    return {
        "gemini": Gemini(model="gemini-2.5-flash"),
        "openai": OpenAILlm(model="gpt-5"),
        "responses": OpenAIResponsesLlm(model="gpt-5"),
        "anthropic": AnthropicLlm(model="claude-sonnet-4-5"),
    }


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "delay", lambda *_: 0.0)


@STREAMING
@pytest.mark.usefixtures("at_once")
async def test_a_model_object_has_the_retries_of_a_model_with_a_name(
    serve: Serve, model_provider: Provider, streaming: bool
) -> None:
    odd = Answer([call("write_file", file_path="/a", content="x"), call_with("ls", "3")])
    with serve(Answer(status=503), odd, Answer(status=503), OK) as server:
        run = await Run(adk_objects()[model_provider.name], streaming=streaming).to_end()
    assert run.text == "ok"
    assert len(server.requests) == 4
    assert [result["status"] for result in run.results] == ["error"]


@pytest.mark.usefixtures("at_once")
async def test_the_failures_of_a_model_object_are_ours(
    serve: Serve, model_provider: Provider
) -> None:
    body = json.dumps({"error": {"message": "no quota", "code": "insufficient_quota"}})
    with serve(Answer(status=429, body=body)) as server, pytest.raises(ModelQuotaUsedUp):
        await Run(adk_objects()[model_provider.name]).to_end()
    assert len(server.requests) == 1
    with (
        serve(*[Answer(body=PAGE, media_type="text/html")] * 5),
        pytest.raises(ModelUnresponsive, match="Welcome to nginx") as caught,
    ):
        await Run(adk_objects()[model_provider.name]).to_end()
    assert says_nothing_of_python(str(caught.value))


@pytest.mark.usefixtures("at_once")
async def test_a_sub_agent_with_a_model_object_has_them_too(serve: Serve) -> None:
    made = adk_objects()
    child = SubAgentSpec(name="child", description="d", model=made["openai"])
    task = Answer([call("task", description="do", subagent_type="child")])
    with serve(task, Answer(status=503), Answer([text("child's")]), OK) as server:
        run = await Run(made["gemini"], subagents=[child]).to_end()
    assert run.text == "ok"
    assert run.results[0]["summary"] == "child's"
    assert len(server.requests) == 4
