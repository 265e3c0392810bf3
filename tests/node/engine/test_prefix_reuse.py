import random
from collections.abc import Callable, Sequence

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.trace_engine import TraceDrafter, TraceTarget
from cosine_lab.emulation.traces import DIGITS, TraceSet
from cosine_node.engine.base import PREFIX, Choice, Row
from cosine_node.engine.llama.engine import LlamaEngine
from cosine_node.engine.ngram import NgramEngine
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.engine.torch.pass_way import PassWay
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.lab.emulation.test_traces import MODELS, a_trace
from tests.node.engine.engines import llama_engine
from tests.node.engine.tiny_models import (
    LATENT,
    OWN_ATTENTION,
    RECURRENT,
    SHARING,
    VOCAB,
    WINDOWED,
    build,
    tiny_llama,
)

PROMPT_TOKENS = 50
NEAR_TIE = 1e-4
Making = Callable[[], "TorchEngine | LlamaEngine | ScriptedEngine | NgramEngine | TraceTarget | TraceDrafter"]
TRACES = TraceSet([a_trace(number, tokens=40) for number in range(PROMPT_TOKENS)])

ENGINES: dict[str, Making] = {
    "llama": lambda: TorchEngine(tiny_llama(), pool_tokens=512),
    "llama.cpp": lambda: llama_engine(tiny_llama(), pool_tokens=512),
    "windowed": lambda: TorchEngine(build(WINDOWED["Gemma2"]()), pool_tokens=512),
    "latent": lambda: TorchEngine(build(LATENT["DeepseekV3"]()), pool_tokens=512),
    "sharing": lambda: TorchEngine(build(SHARING["Gemma3n"]()), pool_tokens=512),
    "own attention": lambda: TorchEngine(build(OWN_ATTENTION["bloom"]()), pool_tokens=512, way=PassWay.CACHED),
    "recurrent": lambda: TorchEngine(build(RECURRENT["mamba2"]()), pool_tokens=512, way=PassWay.CACHED),
    "scripted": lambda: ScriptedEngine(pool_tokens=512, vocab_tokens=VOCAB),
    "lookup": lambda: NgramEngine(pool_tokens=512, vocab_tokens=VOCAB, context_tokens=512),
}
SAMPLINGS = [Sampling(), Sampling(temperature=0.9, repetition_penalty=1.3, seed=4)]


def chain(sequence: int, tokens: Sequence[int], first: int = 0, parent: int = PREFIX) -> Row:
    names = tuple(range(first, first + len(tokens)))
    return Row(sequence, tuple(tokens), names, (parent, *names[:-1]), candidates=3)


class Decoding:
    """One request on an engine: its prompt, then passes of a pending token with a branch to be dropped."""

    def __init__(self, engine: PagedEngine, prompt: Sequence[int], sampling: Sampling, scope: str | None) -> None:
        self.engine = engine
        self.sequence = engine.open(sampling=sampling, prompt_tokens=len(prompt), scope=scope)
        self.reused = engine.reuse_prefix(self.sequence, prompt)
        self.rest = prompt[self.reused :]
        self.text = list(prompt)

    def feed(self, row: Row) -> tuple[Choice, ...]:
        (result,) = self.engine.forward([row])  # type: ignore[attr-defined]
        choices: tuple[Choice, ...] = result.choices
        return choices

    def decode(self, tokens: int) -> list[Choice]:
        """The choice after the prompt and after each token that follows."""
        chosen = [self.feed(chain(self.sequence, self.rest))[-1]]
        self.engine.keep(self.sequence, range(len(self.rest)))
        while len(chosen) <= tokens:
            pending = chosen[-1].token
            self.text.append(pending)
            said = self.feed(Row(self.sequence, (pending, 7, 8), (0, 1, 2), (PREFIX, 0, 0), candidates=3))
            self.engine.keep(self.sequence, [0])
            self.engine.prune(self.sequence, [1, 2])
            chosen.append(said[0])
        return chosen


def assert_alike(reusing: Sequence[Choice], feeding: Sequence[Choice]) -> None:
    assert [choice.token for choice in reusing] == [choice.token for choice in feeding]
    margins = [choice.margin for choice in feeding]
    assert [choice.margin for choice in reusing] == pytest.approx(margins, abs=NEAR_TIE)
    for one, other in zip(reusing, feeding, strict=True):
        assert [p for _, p in one.candidates] == pytest.approx([p for _, p in other.candidates], abs=NEAR_TIE)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("is_released", [False, True])
@pytest.mark.parametrize("name", ENGINES)
def test_the_next_turn_of_a_chat_is_as_if_it_had_fed_everything(
    name: str, is_released: bool, sampling: Sampling
) -> None:
    rng = random.Random(7)
    engine = ENGINES[name]()
    turn = Decoding(engine, [rng.randrange(3, VOCAB) for _ in range(PROMPT_TOKENS)], sampling, "a")
    turn.decode(20)
    if is_released:
        engine.release(turn.sequence)
    prompt = [*turn.text, *(rng.randrange(3, VOCAB) for _ in range(9))]
    reusing, feeding = Decoding(engine, prompt, sampling, "a"), Decoding(ENGINES[name](), prompt, sampling, None)
    assert (reusing.reused, feeding.reused) == (64, 0)
    assert_alike(reusing.decode(12), feeding.decode(12))


@pytest.mark.parametrize("make", [lambda: TraceTarget(TRACES), lambda: TraceDrafter(TRACES, MODELS[0])])
def test_requests_of_one_trace_share_its_places(make: Making) -> None:
    trace = max(TRACES, key=lambda trace: trace.prompt_tokens)
    engine, text = make(), (*trace.prompt(), *trace.stream)
    first = engine.open(sampling=Sampling(), prompt_tokens=trace.prompt_tokens, scope="a")
    expected = engine.forward([chain(first, text)])[0].choices
    engine.keep(first, range(len(text)))
    engine.release(first)
    again = engine.open(sampling=Sampling(), prompt_tokens=trace.prompt_tokens, scope="a")
    reused = engine.reuse_prefix(again, text)
    assert reused == 32
    assert engine.forward([chain(again, text[reused:])])[0].choices == expected[reused:]


def test_a_prompt_of_another_length_is_refused_though_it_begins_like_a_trace() -> None:
    trace = TRACES.numbered(4)
    engine, text = TraceTarget(TRACES), (*trace.prompt(), *trace.stream)
    first = engine.open(sampling=Sampling(), prompt_tokens=trace.prompt_tokens, scope="a")
    engine.forward([chain(first, text)])
    engine.keep(first, range(len(text)))
    other = engine.open(sampling=Sampling(), prompt_tokens=trace.prompt_tokens + DIGITS, scope="a")
    assert engine.reuse_prefix(other, text) == 0
    with pytest.raises(UsageError):
        engine.forward([chain(other, text)])


def test_everything_is_accounted_for() -> None:
    engine = ScriptedEngine(pool_tokens=96)
    prompt = list(range(40))
    first = Decoding(engine, prompt, Sampling(), "a")
    first.decode(1)
    second = Decoding(engine, prompt, Sampling(), "a")
    assert (engine.live_tokens, engine.cached_tokens, engine.free_tokens) == (41 + 32, 0, 48)
    engine.release(first.sequence)
    assert (engine.live_tokens, engine.cached_tokens, engine.free_tokens) == (32, 0, 64)
    engine.release(second.sequence)
    assert (engine.live_tokens, engine.cached_tokens, engine.free_tokens) == (0, 32, 96)
    last = engine.open(sampling=Sampling(), prompt_tokens=1)
    engine.reserve(last, 96)
    assert (engine.live_tokens, engine.cached_tokens, engine.free_tokens) == (0, 0, 0)


def test_a_lookup_engine_finds_what_it_adopted() -> None:
    engine = NgramEngine(pool_tokens=128, vocab_tokens=VOCAB, context_tokens=128)
    text = [*range(20, 40), 5, *range(20, 30)]
    first = Decoding(engine, text, Sampling(), "a")
    first.decode(0)
    engine.release(first.sequence)
    assert engine.indexed_ngrams == 0
    second = Decoding(engine, text, Sampling(), "a")
    assert second.reused == 16
    assert second.decode(0)[0].token == 30
