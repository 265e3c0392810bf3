"""A request from admission to its answer, whole or streamed, over a swarm in virtual time."""

import asyncio
import json
import re
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.engine.curve import CostCurve
from cosine_node.gateway import replies
from cosine_node.gateway.admission import Admission, Slots
from cosine_node.gateway.api_errors import ApiError, internal
from cosine_node.gateway.choices import ChoiceEvent, ChoiceFinished, ChoicePart, ChoiceStarted
from cosine_node.gateway.event_stream import sent_event
from cosine_node.gateway.replies import CHAT, COMPLETION, ChoicesWriter, StreamedReplyWriter, WholeReplyWriter
from cosine_node.gateway.reply_writer import metrics
from cosine_node.gateway.text_request import RequestedChoice
from cosine_p2p.client import AsyncClient
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Reasoning, ToolCall
from cosine_p2p.request.origins import Origin
from cosine_p2p.request.results import Chunk
from cosine_p2p.session.run import Run
from cosine_protocol.records import GenerationDefaults
from cosine_protocol.request import Sampling
from tests.node.gateway.gateways import MODEL, PROMPT, SLOW, Gateway, Reply, text_of, with_gateway
from tests.node.gateway.generations import CODE, DONE, MATH, generation
from tests.node.gateway.written import Sent
from tests.node.peers import request_of
from tests.swarm.reference import assert_freed, plain_stream

TOKENS: Final = 24
NOT_PREDICTED: Final = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
GREEDY: Final = text_of(PROMPT, tokens=TOKENS)


def completed(**options: Any) -> Reply:
    reply = with_gateway(lambda running: running.complete(max_tokens=TOKENS, **options))
    assert isinstance(reply, Reply)
    return reply


def test_the_metrics_of_a_response_are_those_of_its_generations_added_up() -> None:
    body = completed(seed=11, n=3).json
    report = body["metrics"]["speculative_decoding"]
    assert [choice["text"] for choice in body["choices"]] == [GREEDY] * 3
    assert report["drafted"] >= report["offered"] >= report["accepted"] > 0
    assert report["rounds"] + report["accepted"] == 3 * TOKENS
    assert report["acceptance_rate"] == round(report["accepted"] / report["offered"], 4)
    assert report["tokens_per_round"] == round(3 * TOKENS / report["rounds"], 4)
    assert (report["strategy"], report["seed"]) == ("cosine", 11)
    (drafter,) = report["drafters"]
    assert drafter.pop("peer_id").startswith("12D3")
    assert drafter == {"domain": "code", "drafted": report["drafted"], "accepted": report["accepted"]}


def test_a_seed_that_is_drawn_is_exact_in_every_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: (1 << bits) - 1)
    seed = completed().json["metrics"]["speculative_decoding"]["seed"]
    assert int(float(seed)) == seed < 2**53


def test_a_seed_is_drawn_and_told() -> None:
    first = completed(temperature=1.0).json
    seed = first["metrics"]["speculative_decoding"]["seed"]
    assert first["choices"][0]["text"] == text_of(PROMPT, tokens=TOKENS, temperature=1.0, seed=seed)


OWN: Final = GenerationDefaults(
    do_sample=True, temperature=0.9, repetition_penalty=1.2, max_new_tokens=9, not_honoured=("num_beams",)
)


def answered(body: dict[str, Any], **options: Any) -> tuple[str, dict[str, Any]]:
    """The text of a completion over a target with a generation config, and what the response says of that."""

    async def use(running: Gateway) -> Reply:
        return await running.post("/v1/completions", {"model": MODEL, "prompt": PROMPT, **body})

    reply = with_gateway(use, verifier={"published": OWN}, **options).json
    return reply["choices"][0]["text"], reply["metrics"]["generation_config"]


def test_the_models_own_generation_config_is_the_default_that_a_body_overrides_and_a_gateway_may_leave_out() -> (
    None
):
    text, said = answered({"seed": 5})
    sampling = Sampling(temperature=0.9, repetition_penalty=1.2, seed=5)
    assert text == LetterCodec().decode(plain_stream(PROMPT, sampling, tokens=9))
    options = {"temperature": 0.9, "repetition_penalty": 1.2, "max_new_tokens": 9}
    assert said == {"options": options, "not_honoured": ["num_beams"]}
    body = {"temperature": 0, "repetition_penalty": 1, "max_tokens": TOKENS}
    assert answered(body) == (GREEDY, {"options": {}, "not_honoured": ["num_beams"]})
    text, said = answered({"seed": 5}, client={"generation_config": "none"})
    assert text == text_of(PROMPT, tokens=16, temperature=1.0, seed=5)
    assert said == {"options": {}, "not_honoured": []}


def test_a_stream_ends_with_done_and_is_no_cached_document() -> None:
    reply = completed(stream=True)
    *pieces, done = reply.events
    assert done == "[DONE]"
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == GREEDY
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    assert {(piece["id"], piece["created"], piece["object"]) for piece in pieces} == {
        (f"cmpl-{reply.headers['x-request-id']}", 7, "text_completion")
    }


def test_whoever_hangs_up_takes_the_generation_along() -> None:
    async def use(running: Gateway, *, is_streamed: bool) -> Reply:
        hang_up = asyncio.Event()
        asking = asyncio.ensure_future(running.complete(max_tokens=1000, stream=is_streamed, n=2, hang_up=hang_up))
        await asyncio.sleep(0.4)
        assert [member.service.requests for member in running.swarm.members[:1]] == [2]
        hang_up.set()
        reply = await asking
        await assert_freed(running.swarm)
        assert [told["error"] for told in running.told] == ["the client hung up"]
        metrics = (await running.get("/metrics")).body.decode()
        assert f'request_success_total{{finished_reason="abort",model_name="{MODEL}"}} 2.0' in metrics
        assert f'num_requests_running{{model_name="{MODEL}"}} 0.0' in metrics
        return reply

    streamed = with_gateway(lambda running: use(running, is_streamed=True), curve=SLOW)
    assert (streamed.status, streamed.is_complete) == (200, False)
    whole = with_gateway(lambda running: use(running, is_streamed=False), curve=SLOW)
    assert (whole.status, whole.body) == (0, b"")


def test_a_closing_gateway_ends_what_is_under_way_with_an_error() -> None:
    async def use(running: Gateway) -> list[Reply]:
        asking = [
            asyncio.ensure_future(running.complete(max_tokens=1000, stream=is_streamed))
            for is_streamed in (True, False)
        ]
        await asyncio.sleep(0.4)
        running.closing.set()
        replies = await asyncio.gather(*asking)
        await assert_freed(running.swarm)
        return replies

    streamed, whole = with_gateway(use, curve=SLOW)
    *pieces, problem, done = streamed.events
    assert text_of(PROMPT, tokens=200).startswith("".join(piece["choices"][0]["text"] for piece in pieces))
    assert len(pieces) > 2
    assert (problem["error"]["code"], done, streamed.is_complete) == ("shutting_down", "[DONE]", True)
    assert (whole.status, whole.error["code"]) == (503, "shutting_down")


def test_without_a_verifier_it_is_503_and_says_when_to_come_again() -> None:
    reply = with_gateway(lambda running: running.complete(), verifiers=0)
    assert (reply.status, reply.headers["retry-after"]) == (503, "2")
    assert (reply.error["type"], reply.error["code"]) == ("server_error", "no_verifier")
    assert "No verifier serves" in reply.error["message"]


@pytest.mark.parametrize(("timeout_s", "statuses"), [(600.0, [200, 200]), (1.5, [200, 503])])
def test_a_full_verifier_is_waited_for_but_not_for_too_long(timeout_s: float, statuses: list[int]) -> None:
    async def two_streams(running: Gateway) -> list[Reply]:
        return await asyncio.gather(*(running.complete(max_tokens=50, stream=True) for _ in range(2)))

    replies = with_gateway(two_streams, verifier={"max_requests": 1}, client={"timeout_s": timeout_s})
    assert sorted(reply.status for reply in replies) == statuses
    refused = [reply.error["message"] for reply in replies if reply.status == 503]
    assert all("places are taken" in message for message in refused)


def test_a_generation_that_takes_too_long_is_504_and_not_asked_for_again_and_a_stream_that_breaks_says_so() -> None:
    async def use(running: Gateway) -> list[Reply]:
        return [await running.complete(max_tokens=1000, stream=is_streamed) for is_streamed in (False, True)]

    whole, streamed = with_gateway(use, curve=SLOW, client={"timeout_s": 0.5})
    assert (whole.status, whole.headers["x-should-retry"]) == (504, "false")
    assert whole.error["code"] == "timeout"
    *pieces, problem, done = streamed.events
    assert (streamed.status, problem["error"]["code"], done) == (200, "timeout", "[DONE]")
    assert pieces


def test_more_than_may_wait_are_refused_at_once() -> None:
    async def use(running: Gateway) -> list[Reply]:
        return await asyncio.gather(*(running.complete(max_tokens=10) for _ in range(7)))

    replies = with_gateway(use, max_requests=1)
    assert [reply.status for reply in replies] == [200] * 5 + [503] * 2
    assert (replies[-1].error["code"], replies[-1].headers["retry-after"]) == ("overloaded", "2")


@pytest.mark.parametrize(
    ("name", "value"),
    [("logit_bias", {"1073741824": 1}), ("stop_token_ids", [1 << 30]), ("bad_words", ["a" * 65])],
)
def test_tokens_that_the_target_does_not_have_and_words_that_are_too_long_are_the_askers_fault(
    name: str, value: Any
) -> None:
    reply = with_gateway(lambda running: running.complete(**{name: value}))
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_value", name)


def test_prompts_that_cannot_be_are_the_askers_fault() -> None:
    async def use(running: Gateway) -> list[Reply]:
        chat = {"model": MODEL, "messages": [{"role": "wizard", "content": PROMPT}]}
        replies = [await running.complete(""), await running.complete(PROMPT * 600)]
        return [*replies, await running.post("/v1/chat/completions", chat)]

    replies = with_gateway(use)
    assert [(reply.status, reply.error["code"], reply.error["param"]) for reply in replies] == [
        (400, "invalid_value", "prompt"),
        (400, "context_length_exceeded", "prompt"),
        (400, "invalid_value", "messages"),
    ]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_fault_is_500_without_its_reason_and_in_a_stream_told_in_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_streamed: bool
) -> None:
    chunks_of = Run.chunks

    async def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("/home/somebody/secret")

    async def fail_later(run: Run) -> AsyncGenerator[Chunk, None]:
        async with aclosing(chunks_of(run)) as chunks:
            async for chunk in chunks:
                yield chunk
                if run.result().tokens > 5:
                    await fail()

    if is_streamed:
        monkeypatch.setattr(Run, "chunks", fail_later)
    else:
        monkeypatch.setattr(AsyncClient, "start", fail)
    reply = completed(stream=is_streamed)
    if is_streamed:
        *pieces, problem, done = reply.events
        assert (reply.status, problem["error"]["code"], done) == (200, "internal_error", "[DONE]")
        assert pieces
    else:
        assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert b"secret" not in reply.body and b"Traceback" not in reply.body
    assert "somebody/secret" in caplog.text


def test_what_the_log_says_of_a_request_is_not_what_it_said() -> None:
    async def use(running: Gateway) -> list[dict[str, object]]:
        headers = {"X-Request-Id": "mine", "Authorization": "Bearer something"}
        await running.complete(max_tokens=TOKENS, headers=headers)
        await running.complete(temperature=-1)
        return running.told

    served, refused = with_gateway(use)
    assert served.pop("seconds") > 0
    (name,) = served.pop("requests")
    assert re.fullmatch("[0-9a-f]{8}", name)
    drafted, accepted = served.pop("drafted"), served.pop("accepted")
    assert drafted >= accepted > 0
    assert served == {
        "id": "mine",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "choices": 1,
        "prompt_tokens": len(PROMPT),
        "completion_tokens": TOKENS,
        "finish_reasons": ["length"],
    }
    error = "temperature must lie between 0 and 1,000,000, not -1.0."
    assert (refused["status"], refused["error"]) == (400, error)


def by_key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("salts", [("", "", "", ""), ("a", "a", "b", "b")])
def test_the_prompts_of_one_key_or_salt_do_not_show_in_the_times_of_another(salts: Sequence[str]) -> None:
    """Who guesses how another's prompt begins waits as long as for any other prompt."""
    keys = ("one", "one", *(("one", "one") if salts[0] else ("two", "two")))

    async def use(running: Gateway) -> tuple[list[float], list[int]]:
        loop, took_s, cached_tokens = asyncio.get_running_loop(), [], []
        for key, salt in zip(keys, salts, strict=True):
            began_s = loop.time()
            options: dict[str, Any] = {"max_tokens": 1, "headers": by_key(key), "cache_salt": salt or None}
            reply = await running.complete("0123456789" * 60, **options)
            assert reply.status == 200
            took_s.append(loop.time() - began_s)
            cached_tokens.append(reply.json["usage"]["prompt_tokens_details"]["cached_tokens"])
        return took_s, cached_tokens

    (new, known, guessed, known_too), cached_tokens = with_gateway(use, api_keys=("one", "two"))
    assert (cached_tokens[0], cached_tokens[2]) == (0, 0) < (cached_tokens[1], cached_tokens[3]) < (600, 600)
    assert known < 0.7 * new and known_too < 0.7 * guessed
    assert guessed == pytest.approx(new, rel=0.2)


@pytest.mark.thorough
def test_eighty_requests_of_one_key_do_not_keep_another_out() -> None:
    tokens = 8

    async def use(running: Gateway) -> tuple[float, list[int]]:
        def ask(key: str) -> Awaitable[Reply]:
            return running.complete(max_tokens=tokens, headers=by_key(key))

        loop = asyncio.get_running_loop()
        crowd = [asyncio.ensure_future(ask("one")) for _ in range(80)]
        await asyncio.sleep(0.2)
        began_s = loop.time()
        replies = [await ask("two") for _ in range(3)]
        took_s = loop.time() - began_s
        assert [reply.json["choices"][0]["text"] for reply in replies] == [GREEDY[:tokens]] * 3
        return took_s, [(await reply).status for reply in crowd]

    took_s, statuses = with_gateway(use, api_keys=("one", "two"), curve=SLOW)
    assert took_s < 3 * tokens * 2 * SLOW.seconds(1)
    assert statuses.count(200) == 40 and statuses.count(503) == 40


@pytest.mark.parametrize("places", [4, 32])
def test_sixteen_long_texts_of_one_key_leave_anothers_first_tokens_time_and_a_place(places: int) -> None:
    """Each row of a pass costs as much as the first, so that a share of a pass alone would be half of the speed."""
    tokens = 16

    async def use(running: Gateway) -> tuple[float, float]:
        async def ask() -> float:
            began_s = asyncio.get_running_loop().time()
            reply = await running.complete(max_tokens=tokens, headers=by_key("two"), temperature=0)
            assert reply.json["choices"][0]["text"] == GREEDY[:tokens]
            return asyncio.get_running_loop().time() - began_s

        quiet_s = await ask()
        long = [
            asyncio.ensure_future(running.complete(max_tokens=900, headers=by_key("one"), hang_up=hang_up))
            for hang_up in [asyncio.Event()] * 16
        ]
        # Long enough that the places are taken, and what is short of one has asked for it again.
        await asyncio.sleep(5.0)
        beside_s = max([await ask() for _ in range(5)])
        for asking in long:
            asking.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        return quiet_s, beside_s

    by_the_row = CostCurve(((1, 0.03), (64, 64 * 0.03)))
    quiet_s, beside_s = with_gateway(
        use, api_keys=("one", "two"), curve=by_the_row, verifier={"max_requests": places}
    )
    assert beside_s < 2 * quiet_s


def test_a_keys_first_generation_waits_for_no_other_keys() -> None:
    async def run() -> None:
        admission = Admission(max_running=4, max_waiting=60, keys=3)
        order: list[str] = []
        names = ("first", "second", "third")
        with ExitStack() as stack:
            slots = {name: stack.enter_context(admission.admitted(4, key=name)) for name in names}
            asking = []
            for name in names:
                asking += [asyncio.ensure_future(hold(slots[name], name, order)) for _ in range(4)]
                await asyncio.sleep(0.1)
            assert Counter(order) == {"first": 3, "second": 1, "third": 1}
            await asyncio.gather(*asking)
        assert counts(admission) == (0, 0)

    run_virtual(run())


def test_the_next_slot_is_the_keys_that_was_given_the_fewest_tokens() -> None:
    async def run() -> None:
        admission = Admission(max_running=2, max_waiting=60, keys=2)
        order: list[str] = []

        async def spend(slots: Slots, name: str, tokens: int) -> None:
            async with slots() as spent:
                order.append(name)
                await asyncio.sleep(1)
                spent(tokens)

        with admission.admitted(12, key="long") as long, admission.admitted(12, key="short") as short:
            asking = [spend(long, "long", 300) for _ in range(12)] + [spend(short, "short", 100) for _ in range(12)]
            await asyncio.gather(*asking)
        # As many tokens of both, but for one text of each: the short ones are done first.
        assert 2 <= order[: order.index("short") + 14].count("long") <= 6

    run_virtual(run())


def finished(index: int = 0, number: int = 0, **changes: Any) -> ChoiceFinished:
    choice = RequestedChoice(index=index, number=number, prompt="p", seed=7)
    return ChoiceFinished(choice, generation(**changes))


FIRST, SECOND = finished(0, 0), finished(1, 1)
EVENTS: list[ChoiceEvent] = [
    ChoicePart(SECOND.choice, Content("b")),
    SECOND,
    ChoicePart(FIRST.choice, Content("a")),
    ChoicePart(FIRST.choice, Content("!")),
    FIRST,
]


def writing(kind: type[ChoicesWriter], events: list[ChoiceEvent], style: Any, **options: Any) -> Sent:
    """All that a writer sends for some events."""

    async def run() -> Sent:
        sent = Sent()
        writer = kind(style=style, request_id="r", created_s=9, model="m", seed=7, send=sent, **options)
        for event in events:
            await writer.take(event)
        assert bool(sent.messages) == writer.stream.is_begun == (kind is StreamedReplyWriter)
        await writer.end()
        return sent

    return asyncio.run(run())


def test_a_whole_chat_has_its_choices_in_order() -> None:
    body = json.loads(writing(WholeReplyWriter, EVENTS, CHAT).messages[1]["body"])
    assert {name: body[name] for name in ("id", "object", "created", "model", "system_fingerprint")} == {
        "id": "chatcmpl-r",
        "object": "chat.completion",
        "created": 9,
        "model": "m",
        "system_fingerprint": "",
    }
    assert body["choices"] == [
        {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
        for index, text in enumerate(["a!", "b"])
    ]
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 42,
        "total_tokens": 47,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, **NOT_PREDICTED},
    }


@pytest.mark.parametrize(
    ("style", "deltas"),
    [
        (CHAT, [{"delta": each} for each in ({"role": "assistant", "content": ""}, {"content": "hi"}, {})]),
        (COMPLETION, [{"text": "hi"}, {"text": ""}]),
    ],
)
def test_a_choice_in_pieces(style: replies.Style, deltas: list[Any]) -> None:
    events: list[ChoiceEvent] = [ChoicePart(SECOND.choice, Content("hi")), finished(1, 1, finish_reason="length")]
    pieces = writing(StreamedReplyWriter, events, style, choices=1, includes_usage=False).pieces
    reasons = [None] * (len(deltas) - 1) + ["length"]
    assert [piece["choices"] for piece in pieces] == [
        [{"index": 1, **delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in zip(deltas, reasons, strict=True)
    ]
    assert {piece["object"] for piece in pieces} == {style.piece_kind}


CALLING: Final = (
    Reasoning("Let me "),
    Reasoning("see."),
    CallBegun(0, "id0", "add"),
    CallArguments(0, '{"a": '),
    CallArguments(0, "1}"),
    CallBegun(1, "id1", "now"),
    CallArguments(1, "{}"),
)
CALLS: Final = (ToolCall("id0", "add", '{"a": 1}'), ToolCall("id1", "now", "{}"))


def test_a_whole_chat_has_reasoning_and_calls() -> None:
    events: list[ChoiceEvent] = [ChoicePart(FIRST.choice, part) for part in CALLING]
    done = finished(0, 0, finish_reason="eos", tool_calls=CALLS, reasoning_tokens=4)
    body = json.loads(writing(WholeReplyWriter, [*events, done], CHAT).messages[1]["body"])
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "Let me see.",
        "reasoning": "Let me see.",
        "tool_calls": [
            {"id": "id0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
            {"id": "id1", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    }
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4, **NOT_PREDICTED}


def test_calls_in_pieces_begin_with_their_names() -> None:
    events: list[ChoiceEvent] = [ChoicePart(FIRST.choice, part) for part in CALLING[1:5]]
    done = finished(0, 0, finish_reason="length", tool_calls=CALLS[:1])
    pieces = writing(StreamedReplyWriter, [*events, done], CHAT, choices=1, includes_usage=False).pieces
    begun = {"index": 0, "id": "id0", "type": "function", "function": {"name": "add", "arguments": ""}}
    assert [piece["choices"][0]["delta"] for piece in pieces] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "see.", "reasoning": "see."},
        {"tool_calls": [begun]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {},
    ]
    # A reply that is cut within a call says so.
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("includes_usage", [False, True])
def test_the_last_piece_of_a_stream_carries_the_metrics(includes_usage: bool) -> None:
    sent = writing(StreamedReplyWriter, EVENTS, COMPLETION, choices=2, includes_usage=includes_usage)
    *pieces, last = sent.pieces
    assert "metrics" in last and not any("metrics" in piece for piece in pieces)
    assert ([piece["usage"] for piece in pieces] == [None] * 5) if includes_usage else "usage" not in last
    assert bool(last["choices"]) is not includes_usage


def test_an_error_is_raised_until_a_stream_has_begun_and_then_sent_in_it() -> None:
    async def run() -> list[Any]:
        sent = Sent()
        fields: dict[str, Any] = {"request_id": "r", "created_s": 1, "model": "m", "seed": 7, "send": sent}
        writer = StreamedReplyWriter(**fields, style=COMPLETION, choices=2, includes_usage=False)
        with pytest.raises(ApiError):
            await writer.fail(internal())
        await writer.take(EVENTS[0])
        await writer.fail(internal())
        return sent.pieces

    assert asyncio.run(run())[-1]["error"]["code"] == "internal_error"


def test_a_prompt_is_counted_once_for_all_its_choices() -> None:
    all_choices = [FIRST, SECOND, finished(2, 0, prompt_tokens=9), finished(3, 1, prompt_tokens=9)]
    assert replies.usage(all_choices) == {
        "prompt_tokens": 14,
        "completion_tokens": 84,
        "total_tokens": 98,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, **NOT_PREDICTED},
    }


def test_speculation_is_summed_over_choices_and_drafters_and_nothing_drafted_is_no_division() -> None:
    report = metrics([DONE, generation(drafters=(MATH,))], seed=7)["speculative_decoding"]
    assert [report[name] for name in ("drafted", "offered", "accepted", "acceptance_rate")] == [80, 40, 32, 0.8]
    assert (report["rounds"], report["tokens_per_round"]) == (10, 4.2)
    assert report["drafters"] == [
        {"peer_id": "peer-a", "domain": "code", "drafted": CODE.drafted, "accepted": CODE.accepted},
        {"peer_id": "peer-b", "domain": "math", "drafted": 2 * MATH.drafted, "accepted": 2 * MATH.accepted},
    ]
    copied = Origin(source="target", is_copied=True, tokens=4)
    coded = [Origin(source="peer-a", domain="code", tokens=tokens) for tokens in (3, 2)]
    texts = [generation(origins=(coded[0], copied)), generation(origins=(coded[1], copied))]
    assert metrics(texts, seed=7)["speculative_decoding"]["origins"] == [
        {"source": "peer-a", "is_copied": False, "domain": "code", "tokens": 5},
        {"source": "target", "is_copied": True, "domain": "", "tokens": 8},
    ]
    idle = generation(drafted=0, offered=0, accepted=0, rounds=0, drafters=())
    report = metrics([idle], seed=7)["speculative_decoding"]
    assert (report["acceptance_rate"], report["tokens_per_round"], report["drafters"]) == (0.0, 0.0, [])


def test_a_fingerprint_stands_for_weights_and_numerics() -> None:
    request = request_of("client")
    others = [replace(request, numerics="bfloat16"), replace(request, target_digest=bytes([9]) * 32)]
    prints = []
    for each in (request, request_of("another", prompt=(9,)), *others):
        body = writing(WholeReplyWriter, [ChoiceStarted(FIRST.choice, each), FIRST], CHAT).messages[1]["body"]
        prints.append(json.loads(body)["system_fingerprint"])
    assert prints[0] == prints[1] and prints[0].startswith("fp_")
    assert len(set(prints)) == 3


@given(st.text())
def test_an_event_is_one_line_of_json_after_its_name(text: str) -> None:
    data = sent_event({"text": text})
    assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2
    assert json.loads(data.removeprefix(b"data: ")) == {"text": text}
    assert sent_event({"text": text}, name="a.b") == b"event: a.b\n" + data


async def hold(slots: Slots, name: str, order: list[str]) -> None:
    async with slots():
        order.append(name)
        await asyncio.sleep(1)


def counts(admission: Admission) -> tuple[int, int]:
    return admission.running, admission.waiting


def test_slots_are_given_in_order_and_given_back() -> None:
    async def run() -> None:
        admission = Admission(max_running=2, max_waiting=10)
        order: list[str] = []
        with admission.admitted(5) as slots:
            asking = [asyncio.ensure_future(hold(slots, name, order)) for name in "abcde"]
            seen = []
            for _ in range(3):
                await asyncio.sleep(0.5)
                seen.append(counts(admission))
                await asyncio.sleep(0.5)
            await asyncio.gather(*asking)
        assert seen == [(2, 3), (2, 1), (1, 0)]
        assert (order, counts(admission)) == (list("abcde"), (0, 0))

    run_virtual(run())


def test_a_full_line_refuses_whoever_comes_next_but_many_choices_come_in_whole() -> None:
    admission = Admission(max_running=1, max_waiting=2)
    with admission.admitted(1), admission.admitted(20):
        with pytest.raises(ApiError) as refused, admission.admitted(1):
            pass
        assert (refused.value.status, refused.value.code) == (503, "overloaded")
    assert counts(admission) == (0, 0)
    with admission.admitted(1):
        assert counts(admission) == (0, 1)


def test_who_leaves_the_line_leaves_no_trace() -> None:
    async def run() -> None:
        admission = Admission(max_running=1, max_waiting=3)
        with admission.admitted(3) as slots:
            asking = [asyncio.ensure_future(hold(slots, name, [])) for name in "abc"]
            await asyncio.sleep(0.5)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        assert counts(admission) == (0, 0)
        order: list[str] = []
        with admission.admitted(3) as slots:
            first, second, third = (asyncio.ensure_future(hold(slots, name, order)) for name in "abc")
            await asyncio.sleep(0.5)
            # The first one ends in the same turn of the loop in which the second one, who gets its slot, leaves.
            first.cancel()
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            await third
        assert order == ["a", "c"] and counts(admission) == (0, 0)

    run_virtual(run())


def test_a_key_that_fills_its_line_leaves_the_others_theirs() -> None:
    admission = Admission(max_running=2, max_waiting=6, keys=2)
    with admission.admitted(4, key="greedy"):
        with pytest.raises(ApiError) as refused, admission.admitted(1, key="greedy"):
            pass
        assert refused.value.code == "overloaded"
        with admission.admitted(1, key="modest"):
            assert counts(admission) == (0, 5)
    assert counts(admission) == (0, 0)


def test_no_key_has_all_slots_and_keys_come_in_turns() -> None:
    async def run() -> None:
        admission = Admission(max_running=4, max_waiting=60, keys=2)
        order: list[str] = []
        with admission.admitted(12, key="greedy") as many, admission.admitted(4, key="modest") as few:
            asking = [asyncio.ensure_future(hold(many, "greedy", order)) for _ in range(12)]
            await asyncio.sleep(0.5)
            assert order == ["greedy"] * 3
            asking += [asyncio.ensure_future(hold(few, "modest", order)) for _ in range(4)]
            await asyncio.sleep(0.1)
            assert order[3:] == ["modest"]
            await asyncio.gather(*asking)
        # From the second second on both have two slots.
        assert order[4:8].count("modest") == 2
        assert counts(admission) == (0, 0)

    run_virtual(run())
