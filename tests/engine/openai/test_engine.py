"""A drafter whose words a server writes: only what follows the text is proposed, in the target's tokens."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from cosine_engine.base import Choice
from cosine_engine.openai import engine as engine_module
from cosine_engine.openai import server as server_module
from cosine_engine.openai.engine import USUAL_NLL, USUAL_PROBABILITY, ServerEngine
from cosine_engine.openai.server import TextServer
from cosine_protocol.request import Sampling
from tests.engine.openai.reciting_server import (
    LOGPROB,
    PIECES,
    RecitingServer,
    event,
    llama_event,
    ollama_object,
    plain_event,
    says,
    vllm_event,
)
from tests.engine.recited import TEXT, byte_level, chain

PROMPT = "When the ferry"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "WAIT_S", 20.0)


@pytest.fixture
def reciting() -> Iterator[RecitingServer]:
    with RecitingServer() as server:
        yield server


def engine_of(server: RecitingServer, tokenizer: Tokenizer | None = None) -> ServerEngine:
    found = TextServer.find(f"openai:{server.place}#m")
    return ServerEngine(found, tokenizer or byte_level(400), vocab_tokens=402, context_tokens=2048)


class Drafting:
    """One request, whose text is committed and kept token by token."""

    def __init__(self, engine: ServerEngine, prompt: Sequence[int]) -> None:
        self._engine = engine
        self.sequence = engine.open(sampling=Sampling(), prompt_tokens=len(prompt))
        self._names = 0
        self.choice = self.commit(prompt)

    def commit(self, tokens: Sequence[int]) -> Choice:
        """Return the choice after some more tokens."""
        row = chain(self.sequence, tokens, first=self._names)
        self._names += len(tokens)
        [result] = self._engine.forward([row])
        self._engine.keep(self.sequence, row.nodes)
        self.choice = result.choices[-1]
        return self.choice

    def drafts(self, most: int) -> list[int]:
        """Return as many drafted tokens, each after the one before."""
        found: list[int] = []
        while self.choice.candidates and len(found) < most:
            found.append(self.choice.token)
            self.commit(found[-1:])
        return found


@pytest.mark.parametrize("form", [llama_event, vllm_event, ollama_object, plain_event])
@pytest.mark.parametrize("vocab_tokens", [256, 400], ids=["bytes", "pairs"])
def test_a_known_text_is_drafted_token_by_token_as_the_target_writes_it(
    reciting: RecitingServer, form: Callable[[str, str | None], dict[str, Any]], vocab_tokens: int
) -> None:
    reciting.event = form
    engine = engine_of(reciting, byte_level(vocab_tokens))
    prompt, ids = engine.target.encode(PROMPT), list(engine.target.encode(TEXT))
    drafting = Drafting(engine, prompt)
    assert drafting.choice.candidates == ((drafting.choice.token, drafting.choice.margin),)
    assert drafting.drafts(2000) == ids[len(prompt) :]
    # One request follows the other, and none asks for the same again.
    assert reciting.prompts[0] == PROMPT
    assert len(reciting.prompts) == -(-len(PIECES.findall(TEXT[len(PROMPT) :])) // server_module.AHEAD_TOKENS)


def test_the_confidence_is_the_servers_and_a_usual_one_where_it_tells_none(reciting: RecitingServer) -> None:
    engine = engine_of(reciting, byte_level(256))
    drafting = Drafting(engine, engine.target.encode(PROMPT))
    # The first byte of a word that the server writes as one token, and the others.
    told = [drafting.choice.margin, *(drafting.commit([drafting.choice.token]).margin for _ in range(8))]
    assert told == pytest.approx([math.exp(LOGPROB) if letter == " " else 1.0 for letter in " finally "])
    reciting.event = plain_event
    drafting = Drafting(engine, engine.target.encode(PROMPT))
    assert drafting.choice.margin == USUAL_PROBABILITY


def test_a_stream_that_the_text_contradicts_is_cut_and_another_begun(reciting: RecitingServer) -> None:
    engine = engine_of(reciting)
    encode = engine.target.encode
    reciting.answer = says(event(" finally"), event(" left"), waits=True)
    drafting = Drafting(engine, encode(PROMPT))
    assert drafting.drafts(1) == encode(" finally")[:1]
    reciting.answer = says(event(" and"), event(" many"), waits=True)
    drafting.commit(encode(" sank"))
    assert reciting.left.wait(5)
    assert drafting.choice.token == encode(" and")[0]
    assert reciting.prompts == [PROMPT, PROMPT + engine.target.decode(encode(" finally")[:1]) + " sank"]
    reciting.left.clear()
    engine.release(drafting.sequence)
    assert reciting.left.wait(5)


def test_the_same_text_in_other_tokens_does_not_end_a_stream(reciting: RecitingServer) -> None:
    engine = engine_of(reciting)
    drafting = Drafting(engine, engine.target.encode(PROMPT))
    assert len(engine.target.encode(" finally")) < len(" finally")
    drafting.commit([byte_level(256).encode(letter).ids[0] for letter in " finally"])
    known = len(engine.target.encode(PROMPT + " finally"))
    assert drafting.drafts(9) == list(engine.target.encode(TEXT))[known : known + 9]
    assert len(reciting.prompts) == 1


def test_a_stream_that_falls_behind_may_catch_up(reciting: RecitingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "WAIT_S", 0.1)
    engine = engine_of(reciting)
    reciting.answer = says(event(" finally"), waits=True)
    drafting = Drafting(engine, engine.target.encode(PROMPT))
    for word in (" finally", " left", " the"):
        drafting.commit(engine.target.encode(word))
    assert len(reciting.prompts) == 1


def test_text_without_blanks_is_drafted(reciting: RecitingServer) -> None:
    engine = engine_of(reciting)
    reciting.text = "你好世界" * 40
    prompt = engine.target.encode(reciting.text[:4])
    drafting = Drafting(engine, prompt)
    assert drafting.drafts(60) == list(engine.target.encode(reciting.text))[len(prompt) :][:60]


def test_half_a_character_has_no_drafts_and_leaves_the_stream_alone(reciting: RecitingServer) -> None:
    engine = engine_of(reciting, byte_level(256))
    drafting = Drafting(engine, engine.target.encode(PROMPT))
    fish = engine.target.encode("🐟")
    assert drafting.commit(fish[:2]).candidates == ()
    assert len(reciting.prompts) == 1
    drafting.commit(fish[2:])
    assert reciting.prompts[1:] == [PROMPT + "🐟"]


def test_servers_read_special_tokens_but_not_those_that_they_write_themselves(reciting: RecitingServer) -> None:
    tokenizer = byte_level(400)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("<user>", special=True)])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 400)])
    engine = engine_of(reciting, tokenizer)
    Drafting(engine, [400, 401, *engine.target.encode(PROMPT)])
    assert reciting.prompts == ["<user>" + PROMPT]


def test_after_a_fault_drafts_stop_and_come_again_with_the_server(
    reciting: RecitingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(reciting)
    words = [engine.target.encode(word) for word in PIECES.findall(TEXT[len(PROMPT) :])]
    drafting = Drafting(engine, engine.target.encode(PROMPT))
    port = reciting.server_address[1]
    reciting.close()
    away = Drafting(engine, engine.target.encode("Away"))
    began_s = time.monotonic()
    assert not any(away.commit(word).candidates for word in words[:5])
    assert time.monotonic() - began_s < engine_module.WAIT_S
    # What was written before is drafted still.
    assert drafting.drafts(5)
    monkeypatch.setattr(server_module, "RETRY_S", 0.0)
    with RecitingServer(port=port):
        assert away.commit(engine.target.encode("!")).candidates


def test_a_stalled_server_costs_a_pass_no_more_than_its_bound(
    reciting: RecitingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "WAIT_S", 0.2)
    engine = engine_of(reciting)
    reciting.answer = says(waits=True)
    began_s = time.monotonic()
    drafting = Drafting(engine, engine.target.encode(PROMPT))
    assert drafting.choice.candidates == ()
    assert 0.2 <= time.monotonic() - began_s < 2.0
    engine.release(drafting.sequence)


def test_requests_of_a_pass_are_written_beside_each_other(reciting: RecitingServer) -> None:
    engine = engine_of(reciting)
    both = threading.Barrier(2, timeout=10)

    def answer(server: RecitingServer, handler: BaseHTTPRequestHandler) -> None:
        both.wait()
        says(event(" left"), event(" the"))(server, handler)

    reciting.answer = answer
    rows = [
        chain(engine.open(sampling=Sampling(), prompt_tokens=1), engine.target.encode(text))
        for text in (PROMPT, PROMPT + " finally")
    ]
    left = engine.target.encode(" left")[0]
    assert [result.choices[-1].token for result in engine.forward(rows)] == [left, left]


def test_a_likelihood_is_answered_at_once(reciting: RecitingServer) -> None:
    engine = engine_of(reciting)
    reciting.answer = says(waits=True)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=3)
    began_s = time.monotonic()
    [result] = engine.forward([replace(chain(sequence, engine.target.encode(PROMPT)), wants_nll=True)])
    assert time.monotonic() - began_s < engine_module.WAIT_S / 2
    assert (result.nll, result.choices[-1].candidates) == (USUAL_NLL, ())
    engine.release(sequence)
