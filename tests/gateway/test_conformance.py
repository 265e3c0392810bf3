"""Properties of every API of the gateway, over a swarm in virtual time: texts, ends, refusals and streams."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import pairwise
from typing import Any, Final

import pytest
from starlette.types import Message, Receive, Scope, Send

from cosine_engine.curve import CostCurve
from cosine_gateway.event_stream import KEEP_ALIVE_S, WAITING
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Chunk
from cosine_p2p.session.run import Run
from cosine_protocol.errors import GenerationFailed
from tests.gateway.dialects import DIALECTS, Dialect
from tests.gateway.gateways import MODEL, PROMPT, SLOW, Gateway, Reply, call, in_gateway, text_of, with_gateway
from tests.swarm.reference import assert_freed

TOKENS: Final = 24
GREEDY: Final = text_of(PROMPT, tokens=TOKENS)
NO_DRAFTS: Final = {"max_drafters": 0}
"""Options of a client without drafters."""
CRAWLING: Final = CostCurve(((1, 2.0), (64, 2.0)))
EACH: Final = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def both(dialect: Dialect, *, tokens: int = TOKENS, **options: Any) -> tuple[Reply, Reply]:
    """A whole and a streamed reply of a gateway."""

    async def use(running: Gateway) -> list[Reply]:
        return [await dialect.ask(running, tokens=tokens, stream=is_streamed) for is_streamed in (False, True)]

    whole, streamed = with_gateway(use, **options)
    return whole, streamed


@EACH
def test_a_text_is_the_targets_whole_or_streamed(dialect: Dialect) -> None:
    whole, streamed = both(dialect)
    dialect.whole.validate_python(whole.json)
    assert (whole.status, dialect.text(whole.json), dialect.usage(whole.json)) == (200, GREEDY, (8, TOKENS))
    assert whole.json["model"] == MODEL and whole.json["metrics"]["speculative_decoding"]["rounds"] > 0
    assert dialect.streamed(streamed) == (GREEDY, None) and streamed.is_complete
    assert len([event for event in dialect.events(streamed.body) if dialect.piece(event)]) > 2
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert streamed.headers["cache-control"] == "no-cache"


@EACH
@in_gateway()
async def test_samplers_seeds_and_stops_are_honoured(running: Gateway, dialect: Dialect) -> None:
    sampled = await dialect.ask(running, temperature=1, seed=7)
    assert dialect.text(sampled.json) == text_of(PROMPT, tokens=TOKENS, temperature=1, seed=7)
    if dialect.stop is not None:
        stop = GREEDY[9:11]
        fields: dict[str, Any] = {dialect.stop: [stop, "never"]}
        cut = await dialect.ask(running, **fields)
        assert dialect.text(cut.json) == GREEDY[: GREEDY.index(stop)]


@EACH
def test_a_disconnect_cancels_the_generation(dialect: Dialect) -> None:
    choices = 3 if dialect.path.endswith("/completions") else 1
    several: dict[str, Any] = {"n": choices} if choices > 1 else {}

    async def use(running: Gateway, *, is_streamed: bool) -> Reply:
        hang_up = asyncio.Event()
        asked = dialect.ask(running, tokens=1000, stream=is_streamed, hang_up=hang_up, **several)
        asking = asyncio.ensure_future(asked)
        await asyncio.sleep(0.4)
        assert running.swarm.members[0].service.requests == choices
        hang_up.set()
        reply = await asking
        await assert_freed(running.swarm)
        assert [told["error"] for told in running.told] == ["the client hung up"]
        metrics = (await running.get("/metrics")).body.decode()
        assert f'request_success_total{{finished_reason="abort",model_name="{MODEL}"}} {choices}.0' in metrics
        assert f'num_requests_running{{model_name="{MODEL}"}} 0.0' in metrics
        return reply

    streamed = with_gateway(lambda running: use(running, is_streamed=True), curve=SLOW, client=NO_DRAFTS)
    assert (streamed.status, streamed.is_complete) == (200, False) and dialect.streamed(streamed)[0]
    whole = with_gateway(lambda running: use(running, is_streamed=False), curve=SLOW, client=NO_DRAFTS)
    assert (whole.status, whole.body) == (0, b"")


@EACH
@in_gateway(curve=SLOW, client=NO_DRAFTS)
async def test_a_closing_gateway_ends_running_requests_with_an_error(running: Gateway, dialect: Dialect) -> None:
    asking = [asyncio.ensure_future(dialect.ask(running, tokens=1000, stream=each)) for each in (False, True)]
    await asyncio.sleep(0.4)
    running.closing.set()
    whole, streamed = await asyncio.gather(*asking)
    await assert_freed(running.swarm)
    assert dialect.error(whole) == (503, None) and "shutting down" in whole.body.decode()
    text, failure = dialect.streamed(streamed)
    assert text and text_of(PROMPT, tokens=200).startswith(text)
    assert failure and streamed.is_complete and b"shutting down" in streamed.body


@EACH
def test_a_timeout_is_504_or_an_error_in_the_stream(dialect: Dialect) -> None:
    whole, streamed = both(dialect, tokens=1000, curve=SLOW, client=NO_DRAFTS | {"timeout_s": 0.5})
    assert dialect.error(whole) == (504, None) and whole.headers["x-should-retry"] == "false"
    text, failure = dialect.streamed(streamed)
    assert streamed.status == 200 and text and failure


@EACH
def test_a_refusal_without_verifiers_or_places_says_when_to_retry(dialect: Dialect) -> None:
    nobody, _ = both(dialect, verifiers=0)
    assert dialect.error(nobody) == (503, None) and nobody.headers["retry-after"] == "2"
    assert b"No verifier serves" in nobody.body

    async def crowd(running: Gateway) -> list[Reply]:
        asking = [asyncio.ensure_future(dialect.ask(running, tokens=10)) for _ in range(6)]
        await asyncio.sleep(0.01)
        # A full queue refuses a request before its body is parsed.
        refused = await running.post(dialect.path, b"{")
        return [*await asyncio.gather(*asking), refused]

    replies = with_gateway(crowd, max_requests=1, client=NO_DRAFTS)
    assert [reply.status for reply in replies] == [200] * 5 + [dialect.overloaded] * 2
    assert dialect.error(replies[-1]) and replies[-1].headers["retry-after"] == "2"


@EACH
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_fault_is_500_or_an_error_in_the_stream_without_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, dialect: Dialect, is_streamed: bool
) -> None:
    chunks_of = Run.chunks

    async def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("/home/somebody/secret")

    async def fail_later(run: Run) -> AsyncGenerator[Chunk, None]:
        async with aclosing(chunks_of(run)) as chunks:
            async for chunk in chunks:
                yield chunk
                if run.result().usage.completion_tokens > 5:
                    await fail()

    if is_streamed:
        monkeypatch.setattr(Run, "chunks", fail_later)
    else:
        monkeypatch.setattr(AsyncClient, "start", fail)
    reply = with_gateway(lambda running: dialect.ask(running, stream=is_streamed), client=NO_DRAFTS)
    if is_streamed:
        text, failure = dialect.streamed(reply)
        ends = {"/v1/responses": "response.failed", "/v1/messages": "error"}
        assert dialect.events(reply.body)[-1].get("type") == ends.get(dialect.path)
        assert reply.status == 200 and text and failure in ("internal_error", "server_error", "api_error")
    else:
        assert dialect.error(reply) == (500, None)
    assert b"secret" not in reply.body and b"Traceback" not in reply.body
    assert "somebody/secret" in caplog.text


@EACH
@in_gateway(api_keys=("sesame",), client=NO_DRAFTS)
async def test_refusals_have_the_status_and_the_shape_of_their_api_on_all_its_paths(
    running: Gateway, dialect: Dialect
) -> None:
    async def error(param: str | None = None, **fields: Any) -> int:
        status, named = dialect.error(await dialect.ask(running, **fields))
        assert named in (None, param)
        return status

    for key in ({"x-api-key": "sesame"}, {"authorization": "Bearer sesame"}):
        assert (await dialect.ask(running, headers=key)).status == 200
    assert await error() == 401
    unknown = await dialect.ask(running, headers=key, model="x" * 1_000_000)
    assert dialect.error(unknown) in ((404, None), (404, "model")) and len(unknown.body) < 400
    assert await error("temperature", headers=key, temperature=-1) == 400
    for is_streamed in (False, True):
        long: Any = {"prompt": PROMPT * 600, "headers": key, "stream": is_streamed}
        assert await error(dialect.parse(dialect.body()).prompt_field, **long) == 400
    assert await error(headers={**key, "host": "evil.example"}) == 421
    assert dialect.error(await running.get(dialect.path, headers=key))[0] == 405
    for body, status in ((b"{", 400), (b" " * (5 << 20), 413)):
        assert dialect.error(await running.post(dialect.path, body, headers=key))[0] == status


@EACH
@in_gateway(curve=CRAWLING, max_requests=1, client=NO_DRAFTS)
async def test_a_stream_that_waits_for_a_place_is_never_silent_for_long(running: Gateway, dialect: Dialect) -> None:
    first = asyncio.ensure_future(running.complete(max_tokens=12))
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0)
    times_s = [loop.time()]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_timed(message: Message) -> None:
            times_s.append(loop.time())
            await send(message)

        await running.app(scope, receive, send_timed)

    reply = await call(app, "POST", dialect.path, dialect.body(tokens=4, stream=True))
    await first
    silences_s = [later - earlier for earlier, later in pairwise(times_s)]
    assert reply.status == 200 and reply.is_complete and reply.body.startswith(WAITING)
    assert KEEP_ALIVE_S <= max(silences_s) < KEEP_ALIVE_S + 0.1


@EACH
def test_a_body_that_was_kept_alive_is_cut_off_by_a_failure(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect
) -> None:
    chunks_of = Run.chunks

    async def fail_later(run: Run) -> AsyncGenerator[Chunk, None]:
        async with aclosing(chunks_of(run)) as chunks:
            async for chunk in chunks:
                yield chunk
                await asyncio.sleep(3 * KEEP_ALIVE_S)
                raise GenerationFailed("all verifiers are lost")

    monkeypatch.setattr(Run, "chunks", fail_later)
    reply = with_gateway(dialect.ask, client=NO_DRAFTS)
    assert (reply.status, reply.body.strip(), reply.is_complete) == (200, b"", False)
    assert len(reply.body) >= 2


@EACH
@in_gateway()
async def test_the_log_of_a_request_contains_none_of_its_text(running: Gateway, dialect: Dialect) -> None:
    await dialect.ask(running, headers={"X-Request-Id": "mine", "Authorization": "Bearer something"})
    await dialect.ask(running, temperature=-1)
    served, refused = running.told
    assert served.pop("seconds") > 0
    (name,) = served.pop("requests")
    assert re.fullmatch("[0-9a-f]{8}", name)
    assert served.pop("drafted") >= served.pop("accepted") > 0
    assert served == {
        "id": "mine",
        "method": "POST",
        "path": dialect.path,
        "status": 200,
        "choices": 1,
        "prompt_tokens": len(PROMPT),
        "completion_tokens": TOKENS,
        "finish_reasons": ["length"],
    }
    error = "temperature must lie between 0 and 1,000,000, not -1.0."
    assert (refused["status"], refused["error"]) == (400, error)
