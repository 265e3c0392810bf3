import math
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest

from cosine_node.engine.base import PREFIX, Choice, Engine, OutOfPages, Row
from cosine_node.engine.ngram import NgramEngine
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling

VOCAB = 64


def _engine(pool_tokens: int = 4096) -> NgramEngine:
    return NgramEngine(vocab_tokens=VOCAB, context_tokens=2048, pool_tokens=pool_tokens)


def _chain(sequence: int, tokens: Sequence[int], *, scored_from: int = 0, wants_nll: bool = False) -> Row:
    names = tuple(range(len(tokens)))
    return Row(sequence, tuple(tokens), names, (PREFIX, *names[:-1]), scored_from, VOCAB, wants_nll)


def _after(tokens: Sequence[int], sampling: Sampling | None = None) -> Choice:
    """The choice of a fresh engine after a text."""
    engine = _engine()
    sequence = engine.open(sampling=sampling or Sampling(), prompt_tokens=len(tokens))
    return engine.forward([_chain(sequence, tokens, scored_from=len(tokens) - 1)])[0].choices[0]


def _nll(tokens: Sequence[int]) -> float | None:
    engine = _engine()
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(tokens))
    return engine.forward([_chain(sequence, tokens, wants_nll=True)])[0].nll


def test_it_is_an_engine() -> None:
    engine: Engine = _engine()
    assert (engine.vocab_tokens, engine.context_tokens, engine.numerics) == (VOCAB, 2048, "none")
    assert engine.free_tokens == 4096


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


def test_nothing_known_is_token_0_without_margin() -> None:
    assert _after([5]) == _after([5, 6, 7]) == Choice(0, 0.0)


def test_longer_suffixes_are_preferred() -> None:
    # 3 was followed by 9 thrice and lately, but after 1 2 3 came 4.
    choice = _after([1, 2, 3, 4, 8, 3, 9, 7, 3, 9, 6, 3, 9, 1, 2, 3])
    assert choice.token == 4
    assert [token for token, _ in choice.candidates] == [4, 9]
    assert choice.margin > 0


def test_the_estimate_grows_with_length_and_agreement() -> None:
    lengths = [_after([*range(n), 20, 30, *range(n)]).candidates[0][1] for n in (1, 2, 3, 4)]
    assert lengths == sorted(set(lengths))
    agreeing = [_after([1, 2] * n + [1]).candidates[0][1] for n in (1, 2, 3, 9)]
    assert agreeing == sorted(set(agreeing))
    assert _after([1, 2, 1, 3, 1]).candidates[0][1] < agreeing[1]


def test_frequent_and_recent_followers_come_first() -> None:
    assert [token for token, _ in _after([1, 2, 1, 3, 1]).candidates] == [3, 2]
    assert [token for token, _ in _after([1, 2, 1, 2, 1, 3, 1]).candidates][:2] == [2, 3]


@pytest.mark.parametrize("seed", range(20))
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


def test_as_many_candidates_as_wanted() -> None:
    engine = _engine()
    sequence = engine.open(sampling=Sampling(), prompt_tokens=5)
    row = Row(sequence, (1, 2, 1, 3, 1), (0, 1, 2, 3, 4), (PREFIX, 0, 1, 2, 3), scored_from=4, candidates=1)
    assert [token for token, _ in engine.forward([row])[0].choices[0].candidates] == [3]


class Walk:
    """Random passes over one sequence, with the whole path of each live node to compare with."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.engine = _engine()
        self.sequence = self.engine.open(sampling=Sampling(), prompt_tokens=1)
        self.prefix: list[int] = []
        self.parents: dict[int, int] = {}
        self.tokens: dict[int, int] = {}
        self.named = 0

    def step(self) -> None:
        self.rng.choice([self.feed, self.feed, self.keep, self.prune])()
        assert self.engine.live_tokens == len(self.prefix) + len(self.parents)

    def feed(self) -> None:
        names = range(self.named, self.named + self.rng.randint(1, 6))
        self.named = names.stop
        for name in names:
            self.parents[name] = self.rng.choice([PREFIX, *self.parents])
            self.tokens[name] = self.rng.randrange(4)
        tokens, parents = (tuple(table[name] for name in names) for table in (self.tokens, self.parents))
        scored_from = self.rng.randint(0, len(names))
        row = Row(self.sequence, tokens, tuple(names), parents, scored_from, VOCAB)
        expected = [_after(self.text(name)) for name in names[scored_from:]]
        assert list(self.engine.forward([row])[0].choices) == expected

    def keep(self) -> None:
        path = self.path(self.rng.choice([PREFIX, *self.parents]))
        self.prefix.extend(self.tokens[name] for name in path)
        self.engine.keep(self.sequence, path)
        if path:
            below = {name: self.path(name) for name in self.parents}
            kept = {name for name, whole in below.items() if whole[: len(path)] == path and whole != path}
            self.parents = {
                name: PREFIX if parent == path[-1] else parent
                for name, parent in self.parents.items()
                if name in kept
            }

    def prune(self) -> None:
        dropped = set(self.rng.sample(list(self.parents), min(2, len(self.parents))))
        self.engine.prune(self.sequence, list(dropped))
        gone = {name for name in self.parents if dropped & set(self.path(name))}
        self.parents = {name: parent for name, parent in self.parents.items() if name not in gone}

    def path(self, name: int) -> list[int]:
        return [] if name == PREFIX else [*self.path(self.parents[name]), name]

    def text(self, name: int) -> list[int]:
        return [*self.prefix, *(self.tokens[node] for node in self.path(name))]


@pytest.mark.parametrize("seed", range(30))
def test_random_walks_agree_with_a_fresh_engine(seed: int) -> None:
    walk = Walk(random.Random(seed))
    for step in range(40):
        try:
            walk.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}") from error
    walk.engine.release(walk.sequence)
    assert (walk.engine.live_tokens, walk.engine.indexed_ngrams) == (0, 0), f"seed {seed}"
    assert walk.engine.free_tokens == 4096, f"seed {seed}"


def test_sequences_share_nothing_and_leave_nothing() -> None:
    engine = _engine()
    first, second = (engine.open(sampling=Sampling(), prompt_tokens=3) for _ in range(2))
    results = engine.forward([_chain(first, [1, 2, 1]), _chain(second, [1, 3, 1])])
    assert [result.choices[-1].token for result in results] == [2, 3]
    assert engine.indexed_ngrams == 0
    engine.keep(first, [0, 1, 2])
    engine.keep(second, [0, 1])
    held = engine.indexed_ngrams
    engine.release(first)
    assert 0 < engine.indexed_ngrams < held
    engine.release(second)
    assert (engine.live_tokens, engine.indexed_ngrams, engine.free_tokens) == (0, 0, 4096)
    with pytest.raises(LocalProtocolError):
        engine.keep(first, [3])


def test_the_contract_is_enforced() -> None:
    engine = _engine(pool_tokens=32)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    engine.forward([Row(sequence, (1, 2, 3), (0, 1, 2), (PREFIX, 0, 0))])
    engine.prune(sequence, [1])
    for row in (
        Row(sequence, (1,), (5,), (1,)),
        Row(sequence, (1,), (5,), (9,)),
        Row(sequence, (1,), (0,), (PREFIX,)),
        Row(sequence, (VOCAB,), (5,), (PREFIX,)),
    ):
        with pytest.raises(LocalProtocolError):
            engine.forward([row])
    with pytest.raises(OutOfPages):
        engine.forward([Row(sequence, (1,) * 31, tuple(range(5, 36)), (PREFIX,) * 31)])
    with pytest.raises(LocalProtocolError):
        engine.keep(sequence, [2])
    assert (engine.live_tokens, engine.indexed_ngrams) == (2, 0)
    engine.keep(sequence, [0])
    with pytest.raises(LocalProtocolError):
        engine.forward([Row(sequence, (1,), (5,), (0,))])


def test_nll_of_repetitive_text_is_lower() -> None:
    rng = random.Random(1)
    repetitive = _nll([1, 2, 3, 4, 5] * 20)
    noise = _nll([rng.randrange(VOCAB) for _ in range(100)])
    assert repetitive is not None
    assert noise is not None
    assert repetitive < 1 < noise


def test_nll_is_that_of_a_distribution() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    before = _nll(text)
    assert before is not None
    losses = [nll for token in range(VOCAB) if (nll := _nll([*text, token])) is not None]
    own = [math.exp(before * (len(text) - 1) - nll * len(text)) for nll in losses]
    assert sum(own) == pytest.approx(1)
    assert _nll([1, 2, 3]) == pytest.approx(math.log(VOCAB))
    assert _nll([7]) is None


def test_no_torch_is_imported() -> None:
    code = "import sys, cosine_node.engine.ngram; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
