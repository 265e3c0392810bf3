"""The interface of engines, for every engine."""

import math
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from cosine_engine.base import PREFIX, BadLogits, Choice, Engine, OutOfPages, Row
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.torch import sampling as torch_sampling
from cosine_engine.torch.engine import TorchEngine
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling, Shaping, TokenBias
from cosine_protocol.verify import Likelihood, log_probability_of
from tests.engine.engines import (
    ALL,
    ATTENTIONS,
    COUPLED,
    MODELS,
    Kind,
    llama_engine,
    vllm_options,
    wide_llama,
)
from tests.engine.loaded import vllm_folder_engine
from tests.engine.random_serving import draw_requests, serve_alone, serve_together
from tests.engine.random_walk import Walk, check_walk, fresh_logits, generated
from tests.engine.tiny_models import VOCAB
from tests.thoroughness import quick_first

NEAR_TIE = 1e-4


def each(kinds: Mapping[str, Kind]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for name, kind in kinds.items()])


@each({**COUPLED, **ATTENTIONS})
@pytest.mark.parametrize("seed", quick_first(range(3)))
def test_random_walks_equal_fresh_forwards(seed: int, kind: Kind) -> None:
    walk = Walk(seed, kind.make(1024), kind.model() if kind.model else kind.make(1024))
    check_walk(walk, seed)


@each({**COUPLED, **ATTENTIONS})
def test_texts_are_those_of_plain_decoding_whatever_else_is_served(kind: Kind) -> None:
    # A few requests fill the pool: cached prefixes are evicted meanwhile.
    engine = kind.make(512)
    asked = draw_requests(6, vocab_tokens=VOCAB, longest=60, seed=1)
    for one in asked:
        one.expected = serve_alone(engine, one, 16)
    assert serve_together(engine, asked, at_once=4, seed=1, tolerance=NEAR_TIE) == 0


@each({**MODELS, **ATTENTIONS})
def test_greedy_decoding_equals_generate(kind: Kind) -> None:
    assert kind.model is not None
    prompt = [random.Random(1).randrange(3, VOCAB) for _ in range(9)]
    [asked] = draw_requests(1, vocab_tokens=VOCAB, longest=4, seed=0)
    asked.prompt = prompt
    said = serve_alone(kind.make(512), asked, 24)
    assert [token for token, _ in said] == generated(kind.model(), prompt, 24)


class Decoding:
    """Run one request on an engine: its prompt, then passes of a pending token with a branch to drop."""

    def __init__(self, engine: Engine, prompt: Sequence[int], sampling: Sampling, scope: str | None) -> None:
        self.engine = engine
        self.sequence = engine.open(sampling=sampling, prompt_tokens=len(prompt), scope=scope)
        self.reused = engine.reuse_prefix(self.sequence, prompt)
        self.rest = prompt[self.reused :]
        self.text = list(prompt)

    def decode(self, tokens: int) -> list[Choice]:
        """Return the choice after the prompt and after each following token."""
        prompt = replace(Row.chain(self.sequence, self.rest), candidates=3)
        chosen = [self.engine.forward([prompt])[0].choices[-1]]
        self.engine.keep(self.sequence, range(len(self.rest)))
        while len(chosen) <= tokens:
            pending = chosen[-1].token
            self.text.append(pending)
            row = Row(self.sequence, (pending, 7, 8), (0, 1, 2), (PREFIX, 0, 0), candidates=3)
            chosen.append(self.engine.forward([row])[0].choices[0])
            self.engine.keep(self.sequence, [0])
            self.engine.prune(self.sequence, [1, 2])
        return chosen


@pytest.mark.parametrize(
    ("is_released", "sampling"),
    [(True, Sampling()), (False, Sampling(temperature=0.9, repetition_penalty=1.3, seed=4))],
    ids=["after its release", "while it is open"],
)
@each({**COUPLED, **ATTENTIONS})
def test_the_next_turn_of_a_chat_is_as_if_it_had_fed_everything(
    kind: Kind, is_released: bool, sampling: Sampling
) -> None:
    rng = random.Random(7)
    engine = kind.make(512)
    turn = Decoding(engine, [rng.randrange(3, VOCAB) for _ in range(50)], sampling, "a")
    turn.decode(20)
    if is_released:
        engine.release(turn.sequence)
    prompt = [*turn.text, *(rng.randrange(3, VOCAB) for _ in range(9))]
    # Cached prefixes belong to one scope: a request of another feeds everything, in the same engine.
    feeding, reusing = Decoding(engine, prompt, sampling, "b"), Decoding(engine, prompt, sampling, "a")
    assert (reusing.reused, feeding.reused) == (64, 0)
    for one, other in zip(reusing.decode(12), feeding.decode(12), strict=True):
        assert one.token == other.token
        assert one.margin == pytest.approx(other.margin, abs=NEAR_TIE)
        assert [p for _, p in one.candidates] == pytest.approx([p for _, p in other.candidates], abs=NEAR_TIE)


@each(MODELS)
def test_nll_is_that_of_a_plain_forward(kind: Kind) -> None:
    assert kind.model is not None
    engine, tokens = kind.make(512), [5, 9, 77, 140, 3, 8]
    sequence = engine.open(sampling=Sampling(), prompt_tokens=6)
    row = replace(Row.chain(sequence, tokens, scored_from=5), wants_nll=True)
    [result] = engine.forward([row])
    losses = torch.nn.functional.cross_entropy(fresh_logits(kind.model(), tokens)[:-1], torch.tensor(tokens[1:]))
    assert result.nll == pytest.approx(float(losses), rel=1e-5)
    assert len(result.choices) == 1


def vllm_around(model: Any) -> Engine:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return vllm_folder_engine(Path(folder), vllm=vllm_options(), pool_tokens=256)


@pytest.mark.parametrize(
    "around",
    [
        pytest.param(lambda model: TorchEngine(model, pool_tokens=256), id="torch"),
        pytest.param(lambda model: llama_engine(model, pool_tokens=256), id="llama.cpp"),
        pytest.param(vllm_around, id="vLLM", marks=pytest.mark.thorough),
    ],
)
def test_bad_logits_fail_their_own_sequence_only(around: Callable[[Any], Engine]) -> None:
    model = wide_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[50] = math.nan
    engine = around(model)
    good, bad = (engine.open(sampling=Sampling(), prompt_tokens=2) for _ in range(2))
    fine, broken = engine.forward([Row.chain(good, [3, 4]), Row.chain(bad, [3, 50])])
    assert (fine.error, len(fine.choices)) == (None, 2)
    assert (type(broken.error), broken.choices) == (BadLogits, ())
    again = engine.forward([Row.chain(bad, [3, 4])])[0]
    assert [choice.token for choice in again.choices] == [choice.token for choice in fine.choices]


@each(COUPLED)
def test_out_of_pages_feeds_nothing(kind: Kind) -> None:
    engine = kind.make(32)
    first, second = (engine.open(sampling=Sampling(), prompt_tokens=1) for _ in range(2))
    rows = [Row.chain(first, [3] * 10), Row.chain(second, [4] * 20)]
    with pytest.raises(OutOfPages):
        engine.forward(rows)
    assert engine.free_tokens == 32
    engine.reserve(first, PAGE_TOKENS + 1)
    assert engine.free_tokens == 0
    with pytest.raises(OutOfPages):
        engine.reserve(second, 1)
    assert len(engine.forward(rows[:1])[0].choices) == 10


def wrong_rows(sequence: int, engine: Engine) -> list[Row]:
    """Return rows that break a rule each, for a sequence with a node 7 and a dropped node 8."""
    good = Row(sequence, (3, 4), (0, 1), (PREFIX, 0))
    return [
        Row(sequence, (), (), ()),
        replace(good, tokens=(3,)),
        replace(good, nodes=(7, 0), parents=(PREFIX, 7)),
        replace(good, nodes=(0, 0)),
        replace(good, nodes=(-2, 1), parents=(PREFIX, PREFIX)),
        replace(good, parents=(PREFIX, 5)),
        replace(good, parents=(8, 0)),
        replace(good, parents=(1, PREFIX)),
        replace(good, tokens=(3, engine.vocab_tokens)),
        replace(good, tokens=(-1, 3)),
        replace(good, scored_from=3),
        replace(good, parents=(PREFIX, PREFIX), wants_nll=True),
        replace(good, sequence=sequence + 9),
        Row.chain(sequence, [3] * (engine.context_tokens + 1)),
    ]


@each(ALL)
def test_what_breaks_a_rule_is_refused_and_changes_nothing(kind: Kind) -> None:
    engine = kind.make(512)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    engine.forward([Row(sequence, (3, 4), (7, 8), (PREFIX, 7))])
    engine.prune(sequence, [8, 99])
    free = engine.free_tokens
    wrong = [[row] for row in wrong_rows(sequence, engine)]
    row = Row.chain(sequence, [3])
    for rows in [*wrong, [row, replace(row, nodes=(1,))]]:
        with pytest.raises(LocalProtocolError):
            engine.forward(rows)
        assert engine.free_tokens == free
    for path in ([8], [7, 8], [9], [PREFIX]):
        with pytest.raises(LocalProtocolError):
            engine.keep(sequence, path)
    with pytest.raises(LocalProtocolError):
        engine.reuse_prefix(sequence, [3, 4])
    assert engine.forward([]) == []
    assert engine.forward([replace(row, scored_from=1)])[0].choices == ()
    engine.keep(sequence, [])
    engine.keep(sequence, [7])
    with pytest.raises(LocalProtocolError):
        engine.keep(sequence, [0])


@each(ALL)
def test_after_its_release_nothing_is_left_of_a_sequence(kind: Kind) -> None:
    engine = kind.make(512)
    whole = engine.free_tokens
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    engine.abandon()
    engine.forward([Row(sequence, (3, 4, 5), (0, 1, 2), (PREFIX, 0, 0))])
    engine.keep(sequence, [0])
    engine.release(sequence)
    assert (engine.free_tokens, engine.cached_tokens) == (whole, 0)
    for call in (
        lambda: engine.forward([Row.chain(sequence, [3])]),
        lambda: engine.keep(sequence, ()),
        lambda: engine.prune(sequence, ()),
        lambda: engine.reserve(sequence, 1),
        lambda: engine.reuse_prefix(sequence, [3]),
        lambda: engine.release(sequence),
    ):
        with pytest.raises(LocalProtocolError):
            call()
    assert engine.open(sampling=Sampling(), prompt_tokens=1) != sequence


TOLD: Final = {name: kind for name, kind in MODELS.items() if name != "chain of stages"}
TOP: Final = 5
SHAPED: Final = Sampling(
    temperature=0.7, top_k=3, seed=5, repetition_penalty=1.5, shaping=Shaping(logit_bias=(TokenBias(7, 50.0),))
)
"""With all that moves the choice and none of what is told."""


def log_probabilities(kind: Kind, tokens: list[int]) -> Any:
    """Return those after each token, [tokens, vocab], by transformers."""
    assert kind.model is not None
    return fresh_logits(kind.model(), tokens).float().log_softmax(-1)


def check(told: Any, token: int, log_probs: Any) -> None:
    assert log_probability_of(told.surprisal) == pytest.approx(float(log_probs[token]), abs=2e-5)
    values, ids = log_probs.topk(TOP)
    assert [each.token for each in told.top] == ids.tolist()
    assert [log_probability_of(each.surprisal) for each in told.top] == pytest.approx(values.tolist(), abs=2e-5)


@each(TOLD)
def test_log_probabilities_of_a_text_in_pieces_are_transformers_own(kind: Kind) -> None:
    """For lm-eval the sum of those of its end is the likelihood of an answer."""
    engine, chance = kind.make(512), random.Random(1)
    text = [chance.randrange(3, VOCAB) for _ in range(90)]
    log_probs = log_probabilities(kind, text)
    sequence = engine.open(sampling=SHAPED, prompt_tokens=len(text))
    found: list[Likelihood] = []
    for start in range(0, len(text), 32):
        chunk = text[start : start + 32]
        row = Row.chain(sequence, chunk, scored_from=len(chunk))
        followers = tuple([*text[1:], 3][start : start + 32])
        row = replace(row, followers=followers, top=TOP)
        [result] = engine.forward([row])
        engine.keep(sequence, row.nodes)
        found += result.likelihoods
    for place, told in enumerate(found[:-1]):
        check(told, text[place + 1], log_probs[place])
    answer = math.fsum(log_probability_of(told.surprisal) for told in found[59:-1])
    expected = math.fsum(float(log_probs[place][text[place + 1]]) for place in range(59, len(text) - 1))
    assert answer == pytest.approx(expected, abs=1e-4)


@each(TOLD)
def test_log_probabilities_of_choices_in_a_tree_are_of_their_own_paths_and_before_all_shaping(kind: Kind) -> None:
    engine: Engine = kind.make(512)
    prompt = [5, 9, 12, 31, 8]
    other = engine.open(sampling=Sampling(), prompt_tokens=2)
    sequence = engine.open(sampling=SHAPED, prompt_tokens=len(prompt))
    engine.forward([Row.chain(sequence, prompt[:-1], scored_from=len(prompt) - 1)])
    engine.keep(sequence, range(len(prompt) - 1))
    tree = Row(sequence, (prompt[-1], 40, 41, 42), (0, 1, 2, 3), (PREFIX, 0, 0, 1), followers=(None,) * 4, top=TOP)
    beside = Row.chain(other, [3, 4])
    silent, [result] = engine.forward([beside]), engine.forward([tree])
    assert silent[0].likelihoods == ()
    paths = [[], [40], [41], [40, 42]]
    for told, choice, path in zip(result.likelihoods, result.choices, paths, strict=True):
        check(told, choice.token, log_probabilities(kind, [*prompt, *path])[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_of_a_row_are_the_same_whatever_stands_beside_it(dtype: torch.dtype) -> None:
    """Equal deterministic passes give equal likelihoods."""
    logits = (8 * torch.randn(9, 50_001, generator=torch.Generator().manual_seed(1))).to(dtype)
    tokens = list(range(9))
    together = torch_sampling.likelihoods_after(logits, tokens, top=20)
    alone = [torch_sampling.likelihoods_after(logits[row : row + 1], [row], top=20)[0] for row in tokens]
    assert together == alone
