"""A request from its body to its answer, over a swarm in virtual time."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Chunk
from cosine_p2p.session.run import Run
from cosine_protocol.records import GenerationDefaults
from cosine_protocol.request import Sampling
from tests.node.gateway.asgi import Gateway, Reply, gateway
from tests.node.gateway.letters import MODEL, PROMPT, SLOW, text_of
from tests.swarm.reference import assert_freed, plain_stream

TOKENS: Final = 24
GREEDY: Final = text_of(PROMPT, tokens=TOKENS)


def with_gateway(use: Callable[[Gateway], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with gateway(**options) as running:
            return await use(running)

    return run_virtual(run())


def completed(**options: Any) -> Reply:
    reply = with_gateway(lambda running: running.complete(PROMPT, max_tokens=TOKENS, **options))
    assert isinstance(reply, Reply)
    return reply


def test_the_metrics_of_a_response_are_those_of_its_generation() -> None:
    body = completed(seed=11).json
    report = body["metrics"]["speculative_decoding"]
    assert body["choices"][0]["text"] == GREEDY
    assert report["drafted"] >= report["offered"] >= report["accepted"] > 0
    assert report["rounds"] + report["accepted"] == TOKENS
    assert report["acceptance_rate"] == round(report["accepted"] / report["offered"], 4)
    assert report["tokens_per_round"] == round(TOKENS / report["rounds"], 4)
    assert (report["strategy"], report["seed"]) == ("cosine", 11)
    (drafter,) = report["drafters"]
    assert drafter.pop("peer_id").startswith("12D3")
    assert drafter == {"domain": "code", "drafted": report["drafted"], "accepted": report["accepted"]}


def test_the_metrics_of_several_choices_are_added_up() -> None:
    body = completed(n=3).json
    report = body["metrics"]["speculative_decoding"]
    assert [choice["text"] for choice in body["choices"]] == [GREEDY] * 3
    assert report["rounds"] + report["accepted"] == 3 * TOKENS
    assert [drafter["accepted"] for drafter in report["drafters"]] == [report["accepted"]]


def test_a_seed_is_drawn_and_told() -> None:
    first = completed(temperature=1.0).json
    seed = first["metrics"]["speculative_decoding"]["seed"]
    again = completed(temperature=1.0, seed=seed).json
    assert again["choices"] == first["choices"]
    assert first["choices"][0]["text"] == text_of(PROMPT, tokens=TOKENS, temperature=1.0, seed=seed)


CHAT: Final = GenerationDefaults(
    do_sample=True, temperature=0.9, repetition_penalty=1.2, max_new_tokens=9, not_honoured=("num_beams",)
)


def answered(body: dict[str, Any], **options: Any) -> tuple[str, dict[str, Any]]:
    """The text of a completion over a target with a generation config, and what the response says of that."""

    async def use(running: Gateway) -> Reply:
        return await running.post("/v1/completions", {"model": MODEL, "prompt": PROMPT, **body})

    reply = with_gateway(use, verifier={"published": CHAT}, **options).json
    return reply["choices"][0]["text"], reply["metrics"]["generation_config"]


def test_the_models_own_generation_config_is_the_default_of_a_request() -> None:
    sampling = Sampling(temperature=0.9, repetition_penalty=1.2, seed=5)
    text, said = answered({"seed": 5})
    assert text == LetterCodec().decode(plain_stream(PROMPT, sampling, tokens=9))
    assert said == {
        "options": {"temperature": 0.9, "repetition_penalty": 1.2, "max_new_tokens": 9},
        "not_honoured": ["num_beams"],
    }


def test_what_a_body_says_wins_over_the_models_own() -> None:
    body = {"temperature": 0, "repetition_penalty": 1, "max_tokens": TOKENS}
    assert answered(body) == (GREEDY, {"options": {}, "not_honoured": ["num_beams"]})


def test_a_gateway_may_leave_the_models_own_out() -> None:
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
        asking = asyncio.ensure_future(
            running.complete(PROMPT, max_tokens=1000, stream=is_streamed, n=2, hang_up=hang_up)
        )
        await asyncio.sleep(0.7)
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
            asyncio.ensure_future(running.complete(PROMPT, max_tokens=1000, stream=is_streamed))
            for is_streamed in (True, False)
        ]
        await asyncio.sleep(0.7)
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
    reply = with_gateway(lambda running: running.complete(PROMPT), verifiers=0)
    assert (reply.status, reply.headers["retry-after"]) == (503, "2")
    assert (reply.error["type"], reply.error["code"]) == ("server_error", "no_verifier")
    assert "No verifier serves" in reply.error["message"]


async def two_streams(running: Gateway) -> list[Reply]:
    return await asyncio.gather(*(running.complete(PROMPT, max_tokens=50, stream=True) for _ in range(2)))


def test_a_full_verifier_is_waited_for() -> None:
    replies = with_gateway(two_streams, verifier={"max_requests": 1})
    assert [reply.status for reply in replies] == [200, 200]


def test_a_verifier_that_stays_full_for_too_long_is_503_even_for_a_stream() -> None:
    replies = with_gateway(two_streams, verifier={"max_requests": 1}, client={"timeout_s": 1.5})
    assert sorted(reply.status for reply in replies) == [200, 503]
    refused = next(reply for reply in replies if reply.status == 503)
    assert "places are taken" in refused.error["message"]


def test_a_generation_that_takes_too_long_is_504_and_not_asked_for_again() -> None:
    reply = with_gateway(
        lambda running: running.complete(PROMPT, max_tokens=1000), curve=SLOW, client={"timeout_s": 1.0}
    )
    assert (reply.status, reply.headers["x-should-retry"]) == (504, "false")
    assert reply.error["code"] == "timeout"


def test_a_stream_that_breaks_says_so() -> None:
    reply = with_gateway(
        lambda running: running.complete(PROMPT, max_tokens=1000, stream=True),
        curve=SLOW,
        client={"timeout_s": 1.0},
    )
    *pieces, problem, done = reply.events
    assert (reply.status, problem["error"]["code"], done) == (200, "timeout", "[DONE]")
    assert pieces


def test_more_than_may_wait_are_refused_at_once() -> None:
    async def use(running: Gateway) -> list[Reply]:
        return await asyncio.gather(*(running.complete(PROMPT, max_tokens=10) for _ in range(7)))

    replies = with_gateway(use, max_requests=1)
    assert [reply.status for reply in replies] == [200] * 5 + [503] * 2
    assert (replies[-1].error["code"], replies[-1].headers["retry-after"]) == ("overloaded", "2")


def test_prompts_that_cannot_be_are_the_askers_fault() -> None:
    async def use(running: Gateway) -> list[Reply]:
        chat = {"model": MODEL, "messages": [{"role": "wizard", "content": PROMPT}]}
        return [
            await running.complete(""),
            await running.complete(PROMPT * 600),
            await running.post("/v1/chat/completions", chat),
        ]

    replies = with_gateway(use)
    assert [reply.status for reply in replies] == [400] * 3
    assert [reply.error["code"] for reply in replies] == [
        "invalid_value",
        "context_length_exceeded",
        "invalid_value",
    ]
    assert [reply.error["param"] for reply in replies] == ["prompt", "prompt", "messages"]


def test_a_fault_is_500_without_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("/home/somebody/secret")

    monkeypatch.setattr(AsyncClient, "start", fail)
    reply = completed()
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert b"secret" not in reply.body and b"Traceback" not in reply.body
    assert "somebody/secret" in caplog.text


def test_a_fault_in_a_stream_is_told_in_the_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chunks_of = Run.chunks

    async def fail(run: Run) -> AsyncGenerator[Chunk, None]:
        async with aclosing(chunks_of(run)) as chunks:
            async for chunk in chunks:
                yield chunk
                if run.result().tokens > 5:
                    raise ZeroDivisionError("/home/somebody/secret")

    monkeypatch.setattr(Run, "chunks", fail)
    reply = completed(stream=True)
    *pieces, problem, done = reply.events
    assert (reply.status, problem["error"]["code"], done) == (200, "internal_error", "[DONE]")
    assert pieces and b"secret" not in reply.body
    assert "somebody/secret" in caplog.text


def test_what_the_log_says_of_a_request_is_not_what_it_said() -> None:
    async def use(running: Gateway) -> list[dict[str, object]]:
        await running.post(
            "/v1/completions",
            {"model": MODEL, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0},
            headers={"X-Request-Id": "mine", "Authorization": "Bearer something"},
        )
        await running.complete(PROMPT, temperature=-1)
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
    assert (refused["status"], refused["error"]) == (
        400,
        "temperature must lie between 0 and 1,000,000, not -1.0.",
    )


def test_the_prompts_of_one_key_do_not_show_in_the_times_of_another() -> None:
    """A key that guesses how another's prompt begins waits as long as for any other prompt."""
    prompt = "0123456789" * 60

    async def first_tokens_s(running: Gateway, key: str) -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 1}
        reply = await running.post("/v1/completions", body, headers={"authorization": f"Bearer {key}"})
        assert reply.status == 200
        return loop.time() - began_s

    async def use(running: Gateway) -> list[float]:
        return [await first_tokens_s(running, key) for key in ("one", "one", "two", "two")]

    new, known, guessed, known_too = with_gateway(use, api_keys=("one", "two"))
    assert known < 0.7 * new and known_too < 0.7 * guessed
    assert guessed == pytest.approx(new, rel=0.2)


@pytest.mark.thorough
def test_eighty_requests_of_one_key_do_not_keep_another_out() -> None:
    async def use(running: Gateway) -> tuple[float, list[int]]:
        def ask(key: str, tokens: int) -> Awaitable[Reply]:
            body = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": tokens}
            return running.post("/v1/completions", body, headers={"authorization": f"Bearer {key}"})

        loop = asyncio.get_running_loop()
        crowd = [asyncio.ensure_future(ask("one", TOKENS)) for _ in range(80)]
        await asyncio.sleep(0.5)
        began_s = loop.time()
        replies = [await ask("two", TOKENS) for _ in range(3)]
        took_s = loop.time() - began_s
        assert [reply.json["choices"][0]["text"] for reply in replies] == [GREEDY] * 3
        statuses = [(await reply).status for reply in crowd]
        return took_s, statuses

    took_s, statuses = with_gateway(use, api_keys=("one", "two"), curve=SLOW)
    assert took_s < 3 * TOKENS * 2 * SLOW.seconds(1)
    assert statuses.count(200) == 40 and statuses.count(503) == 40
