"""Completions over a swarm in virtual time: seeds, defaults of the target, and isolation of keys."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Final

import pytest

from cosine_engine.curve import CostCurve
from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_protocol.records import GenerationDefaults
from cosine_protocol.request import Sampling
from tests.gateway.dialects import DIALECTS, Dialect
from tests.gateway.gateways import MODEL, PROMPT, Gateway, Reply, in_gateway, text_of, with_gateway
from tests.swarm.reference import plain_stream

TOKENS: Final = 24
GREEDY: Final = text_of(PROMPT, tokens=TOKENS)


def test_a_drawn_seed_is_reported_and_exact_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: (1 << bits) - 1)
    body = with_gateway(lambda running: running.complete(max_tokens=TOKENS, temperature=1.0)).json
    seed = body["metrics"]["speculative_decoding"]["seed"]
    assert int(float(seed)) == seed < 2**53
    assert body["choices"][0]["text"] == text_of(PROMPT, tokens=TOKENS, temperature=1.0, seed=seed)


OWN: Final = GenerationDefaults(
    do_sample=True, temperature=0.9, repetition_penalty=1.2, max_new_tokens=9, not_honoured=("num_beams",)
)


def answered(body: dict[str, Any], **options: Any) -> tuple[str, dict[str, Any]]:
    """The text of a completion over a target with a generation config, and the response's report of that."""

    async def use(running: Gateway) -> Reply:
        return await running.post("/v1/completions", {"model": MODEL, "prompt": PROMPT, **body})

    reply = with_gateway(use, verifier={"published": OWN}, **options).json
    return reply["choices"][0]["text"], reply["metrics"]["generation_config"]


def test_the_models_generation_config_is_a_default_that_a_gateway_can_disable() -> None:
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


@in_gateway()
async def test_prompts_and_tokens_that_the_target_does_not_accept_are_400(running: Gateway) -> None:
    strange: dict[str, Any] = {
        "logit_bias": {"1073741824": 1},
        "stop_token_ids": [1 << 30],
        "bad_words": ["a" * 65],
    }

    chat = {"model": MODEL, "messages": [{"role": "wizard", "content": PROMPT}]}
    replies = [await running.complete(""), await running.complete(PROMPT * 600)]
    replies.append(await running.post("/v1/chat/completions", chat))
    replies += [await running.complete(**{name: value}) for name, value in strange.items()]
    assert [(reply.status, reply.error["code"], reply.error["param"]) for reply in replies] == [
        (400, "invalid_value", "prompt"),
        (400, "context_length_exceeded", "prompt"),
        (400, "invalid_value", "messages"),
        *((400, "invalid_value", name) for name in strange),
    ]


def by_key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("salts", [("", "", "", ""), ("a", "a", "b", "b")])
@in_gateway(api_keys=("one", "two"))
async def test_the_prompts_of_one_key_or_salt_do_not_show_in_the_times_of_another(
    running: Gateway, salts: Sequence[str]
) -> None:
    """A guess of another key's prompt takes as long as any other prompt."""
    keys = ("one", "one", *(("one", "one") if salts[0] else ("two", "two")))
    loop, took_s, cached_tokens = asyncio.get_running_loop(), [], []
    for key, salt in zip(keys, salts, strict=True):
        began_s = loop.time()
        options: dict[str, Any] = {"max_tokens": 1, "headers": by_key(key), "cache_salt": salt or None}
        reply = await running.complete("0123456789" * 60, **options)
        assert reply.status == 200
        took_s.append(loop.time() - began_s)
        cached_tokens.append(reply.json["usage"]["prompt_tokens_details"]["cached_tokens"])
    new, known, guessed, known_too = took_s
    assert (cached_tokens[0], cached_tokens[2]) == (0, 0) < (cached_tokens[1], cached_tokens[3]) < (600, 600)
    assert known < 0.7 * new and known_too < 0.7 * guessed
    assert guessed == pytest.approx(new, rel=0.2)


@pytest.mark.parametrize("places", [4, 32])
def test_sixteen_long_texts_of_one_key_do_not_delay_another_key(places: int) -> None:
    """Each row of a pass costs as much as the first, so an equal share of passes would halve the speed."""
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
        # Long enough that all places are taken and refused requests have been retried.
        await asyncio.sleep(5.0)
        loaded_s = max([await ask() for _ in range(5)])
        for asking in long:
            asking.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        return quiet_s, loaded_s

    curve = CostCurve(((1, 0.03), (64, 64 * 0.03)))
    quiet_s, loaded_s = with_gateway(use, api_keys=("one", "two"), curve=curve, verifier={"max_requests": places})
    assert loaded_s < 2 * quiet_s


@in_gateway(client={"max_drafters": 0})
async def test_a_prediction_changes_no_text_and_its_tokens_are_counted(running: Gateway) -> None:
    whole = {"type": "content", "content": GREEDY}
    parts = {"type": "content", "content": [{"type": "text", "text": GREEDY[:7]}, {"type": "text", "text": "1111"}]}
    replies = [(await running.complete(max_tokens=TOKENS, prediction=each)).json for each in (None, whole, parts)]
    assert [reply["choices"][0]["text"] for reply in replies] == [GREEDY] * 3
    details = [reply["usage"]["completion_tokens_details"] for reply in replies]
    told = [(each["accepted_prediction_tokens"], each["rejected_prediction_tokens"]) for each in details]
    assert told == [(0, 0), (TOKENS, 0), (7, 4)]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
@in_gateway()
async def test_every_reply_tells_by_its_headers_where_it_comes_from(
    running: Gateway, dialect: Dialect, stream: bool
) -> None:
    reply = await dialect.ask(running, tokens=2, stream=stream)
    verifier, _ = running.swarm.members
    assert reply.status == 200
    assert reply.headers["x-cosine-verifier"] == verifier.transport.peer_id
    assert reply.headers["x-cosine-target"] == running.swarm.facts.digest().hex()
    (request,) = running.told[-1]["requests"]
    assert reply.headers["x-cosine-proof"].startswith(request)
    name, milliseconds = reply.headers["server-timing"].split(";dur=")
    assert name == "first" and float(milliseconds) >= 0
