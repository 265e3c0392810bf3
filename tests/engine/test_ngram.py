import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cosine_engine.base import Choice, Row
from cosine_engine.ngram import NgramEngine
from cosine_protocol.request import Sampling

VOCAB = 64


def _engine() -> NgramEngine:
    return NgramEngine(vocab_tokens=VOCAB, context_tokens=2048, pool_tokens=4096)


def _chain(sequence: int, tokens: Sequence[int], *, scored_from: int = 0, wants_nll: bool = False) -> Row:
    row = Row.chain(sequence, tokens, scored_from=scored_from)
    return replace(row, candidates=VOCAB, wants_nll=wants_nll)


def _after(tokens: Sequence[int]) -> Choice:
    """Return the choice of a fresh engine after a text."""
    engine = _engine()
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(tokens))
    return engine.forward([_chain(sequence, tokens, scored_from=len(tokens) - 1)])[0].choices[0]


def _nll(tokens: Sequence[int]) -> float | None:
    engine = _engine()
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(tokens))
    return engine.forward([_chain(sequence, tokens, wants_nll=True)])[0].nll


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3, top_k=2)])
def test_a_copied_passage_is_repeated(sampling: Sampling) -> None:
    passage = list(range(10, 40))
    engine = _engine()
    sequence = engine.open(sampling=sampling, prompt_tokens=31)
    copied = passage[:1]
    row = _chain(sequence, [*passage, 1, *copied], scored_from=31)
    while len(copied) < len(passage):
        copied.append(engine.forward([row])[0].choices[0].token)
        engine.keep(sequence, row.nodes)
        row = _chain(sequence, copied[-1:])
    assert copied == passage


@pytest.mark.parametrize("seed", range(4))
def test_candidates_are_a_probability_with_something_left(seed: int) -> None:
    rng = random.Random(seed)
    for length in range(1, 60):
        choice = _after([rng.randrange(1, 6) for _ in range(length)])
        estimates = [p for _, p in choice.candidates]
        assert sum(estimates) < 1, f"seed {seed}"
        assert estimates == sorted(estimates, reverse=True), f"seed {seed}"
        assert len({token for token, _ in choice.candidates}) == len(estimates), f"seed {seed}"
        assert choice.token == (choice.candidates[0][0] if estimates else 0), f"seed {seed}"
        assert 0 <= choice.margin < math.inf, f"seed {seed}"


def test_nll_is_that_of_a_distribution() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    before = _nll(text)
    assert before is not None
    losses = [nll for token in range(VOCAB) if (nll := _nll([*text, token])) is not None]
    own = [math.exp(before * (len(text) - 1) - nll * len(text)) for nll in losses]
    assert sum(own) == pytest.approx(1)
    assert _nll([1, 2, 3]) == pytest.approx(math.log(VOCAB))
    assert _nll([7]) is None
