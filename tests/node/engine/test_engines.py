"""The interface of engines, as every engine with a model keeps it."""

import math
import random
from typing import Any

import pytest
import torch

from cosine_node.engine.base import PREFIX, BadLogits, Engine, OutOfPages, Row
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling
from tests.node.engine.engines import KINDS, EngineOf
from tests.node.engine.random_serving import draw_requests, serve_alone, serve_together
from tests.node.engine.random_walk import Walk, check_walk, fresh_logits
from tests.node.engine.tiny_models import VOCAB, tiny_llama
from tests.thoroughness import quick_first


@pytest.fixture(params=list(KINDS))
def engine_of(request: pytest.FixtureRequest) -> EngineOf:
    """Makes an engine of one kind around a model of transformers."""
    kind: str = request.param
    return KINDS[kind]


@pytest.fixture
def engine(engine_of: EngineOf) -> Engine:
    return engine_of(tiny_llama(), pool_tokens=512)


def _chain(sequence: int, tokens: list[int], **options: Any) -> Row:
    nodes = tuple(range(len(tokens)))
    return Row(sequence, tuple(tokens), nodes, (PREFIX, *nodes[:-1]), **options)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_decoding_equals_generate(seed: int, engine: Engine) -> None:
    prompt = [random.Random(seed).randrange(3, VOCAB) for _ in range(9 + seed)]
    expected = tiny_llama().generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=24, eos_token_id=None, pad_token_id=0
    )
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(prompt))
    fed, output = prompt, list[int]()
    while len(output) < 24:
        result = engine.forward([_chain(sequence, fed, scored_from=len(fed) - 1)])[0]
        engine.keep(sequence, range(len(fed)))
        fed = [result.choices[0].token]
        output += fed
    assert output == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("seed", quick_first(range(8), 3))
def test_random_walks_equal_fresh_forwards(seed: int, engine_of: EngineOf) -> None:
    check_walk(Walk(seed, engine_of(tiny_llama(), pool_tokens=1024), tiny_llama()), seed)


@pytest.mark.parametrize("seed", quick_first(range(4)))
def test_texts_are_those_of_plain_decoding_whatever_else_is_served(seed: int, engine_of: EngineOf) -> None:
    engine = engine_of(tiny_llama(), pool_tokens=4096)
    asked = draw_requests(8, vocab_tokens=VOCAB, longest=60, seed=seed)
    for one in asked:
        one.expected = serve_alone(engine, one, 24)
    assert serve_together(engine, asked, at_once=5, seed=seed, tolerance=1e-4) == 0


def test_nll_is_that_of_a_plain_forward(engine: Engine) -> None:
    tokens = [5, 9, 77, 140, 3, 8]
    sequence = engine.open(sampling=Sampling(), prompt_tokens=6)
    result = engine.forward([_chain(sequence, tokens, scored_from=5, wants_nll=True)])[0]
    losses = torch.nn.functional.cross_entropy(fresh_logits(tiny_llama(), tokens)[:-1], torch.tensor(tokens[1:]))
    assert result.nll == pytest.approx(float(losses), rel=1e-5)
    assert len(result.choices) == 1


def test_a_row_may_ask_for_no_choice(engine: Engine) -> None:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=3)
    assert engine.forward([_chain(sequence, [4, 5, 6], scored_from=3)])[0].choices == ()


def test_bad_logits_fail_their_own_sequence_only(engine_of: EngineOf) -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[50] = math.nan
    engine = engine_of(model, pool_tokens=256)
    good, bad = (engine.open(sampling=Sampling(), prompt_tokens=2) for _ in range(2))
    fine, broken = engine.forward([_chain(good, [3, 4]), _chain(bad, [3, 50])])
    assert fine.error is None
    assert len(fine.choices) == 2
    assert isinstance(broken.error, BadLogits)
    assert broken.choices == ()
    again = engine.forward([_chain(bad, [3, 4])])[0]
    assert [choice.token for choice in again.choices] == [choice.token for choice in fine.choices]


def test_out_of_pages_feeds_nothing(engine_of: EngineOf) -> None:
    engine = engine_of(tiny_llama(), pool_tokens=32)
    first, second = (engine.open(sampling=Sampling(), prompt_tokens=1) for _ in range(2))
    rows = [_chain(first, [3] * 10), _chain(second, [4] * 20)]
    with pytest.raises(OutOfPages):
        engine.forward(rows)
    assert engine.free_tokens == 32
    engine.reserve(first, PAGE_TOKENS + 1)
    assert engine.free_tokens == 0
    with pytest.raises(OutOfPages):
        engine.reserve(second, 1)
    assert len(engine.forward(rows[:1])[0].choices) == 10


@pytest.mark.parametrize(
    "row",
    [
        Row(0, (), (), ()),
        Row(0, (3,), (0, 1), (PREFIX,)),
        Row(0, (3,), (7,), (PREFIX,)),
        Row(0, (3, 4), (0, 0), (PREFIX, 0)),
        Row(0, (3,), (-2,), (PREFIX,)),
        Row(0, (3,), (0,), (5,)),
        Row(0, (3, 4), (0, 1), (1, PREFIX)),
        Row(0, (VOCAB,), (0,), (PREFIX,)),
        Row(0, (-1,), (0,), (PREFIX,)),
        Row(0, (3,), (0,), (PREFIX,), scored_from=2),
        Row(0, (3, 4), (0, 1), (PREFIX, PREFIX), wants_nll=True),
        Row(9, (3,), (0,), (PREFIX,)),
        _chain(0, [3] * 257),
    ],
)
def test_wrong_rows_are_refused(engine: Engine, row: Row) -> None:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    engine.forward([Row(sequence, (3,), (7,), (PREFIX,))])
    free = engine.free_tokens
    with pytest.raises(LocalProtocolError):
        engine.forward([row])
    assert engine.free_tokens == free


def test_one_row_a_sequence_and_no_row_after_release(engine: Engine) -> None:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    row = _chain(sequence, [3])
    with pytest.raises(LocalProtocolError):
        engine.forward([row, row])
    assert engine.forward([]) == []
    engine.release(sequence)
    for call in (
        lambda: engine.forward([row]),
        lambda: engine.keep(sequence, ()),
        lambda: engine.prune(sequence, ()),
        lambda: engine.reserve(sequence, 1),
        lambda: engine.release(sequence),
    ):
        with pytest.raises(LocalProtocolError):
            call()


def test_keep_refuses_what_is_no_path(engine: Engine) -> None:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    engine.forward([Row(sequence, (3, 4, 5), (0, 1, 2), (PREFIX, 0, PREFIX))])
    for path in ([1], [0, 2], [9]):
        with pytest.raises(LocalProtocolError):
            engine.keep(sequence, path)
    engine.keep(sequence, [0])
    engine.keep(sequence, [1])
