"""A drafter of fewer tokens: where its vocabulary covers the likely ones, it equals the full drafter."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as tf

from cosine_engine.base import Engine, Row, RowResult
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.vocabulary import FILE_NAME, DraftVocabulary, KnownTokens
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling, Shaping, TokenBias
from tests.engine.tiny_models import COMMON, VOCAB


def test_tokens_are_numbered_in_its_order_and_all_others_are_the_reserved_id() -> None:
    vocabulary = DraftVocabulary((2, 5, 9))
    assert vocabulary.reserved_id == 3
    assert vocabulary.own_tokens([9, 2, 7, 5, 2]) == (2, 0, 3, 1, 0)
    shaping = Shaping(
        presence_penalty=1.0,
        logit_bias=(TokenBias(9, 1.0), TokenBias(7, 2.0)),
        bad_words=((2,), (5, 7), (5, 9)),
        min_tokens=3,
        held_back=(7, 5),
    )
    assert vocabulary.own_sampling(Sampling(seed=5)) == Sampling(seed=5)
    assert vocabulary.own_sampling(Sampling(shaping=shaping)).shaping == Shaping(
        presence_penalty=1.0,
        logit_bias=(TokenBias(2, 1.0),),
        bad_words=((0,), (1, 2)),
        min_tokens=3,
        held_back=(1,),
    )


@pytest.mark.parametrize("text", ["[]", "[3, 3]", "[4, 1]", "[-1, 2]", "[1.5]", "[true, 2]", '{"1": 2}', "[1,"])
def test_a_file_that_is_no_rising_list_of_ids_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text, "utf-8")
    with pytest.raises(UsageError):
        DraftVocabulary.read(tmp_path)


KNOWN = DraftVocabulary(tuple(range(0, VOCAB, 3)))
NEVER = -1e4
SHAPING = Shaping(
    presence_penalty=0.5,
    frequency_penalty=0.3,
    logit_bias=tuple(TokenBias(token, token % 7 - 3) for token in range(40)),
    bad_words=((3,), (0, 6), (1,), (4, 9)),
    min_tokens=4,
    held_back=(9, 10),
)
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.8, seed=11),
    Sampling(temperature=1.0, top_p=0.9, seed=3),
    Sampling(temperature=0.8, repetition_penalty=1.3, seed=5),
    Sampling(temperature=0.8, seed=5, shaping=SHAPING),
]


@pytest.fixture(scope="module")
def twins() -> tuple[Engine, Engine]:
    """A model that gives nothing but known tokens a chance, and the same model with these tokens alone."""
    torch.manual_seed(4)
    full = tf.PhiForCausalLM(tf.PhiConfig(**COMMON)).eval()
    rows = torch.tensor(KNOWN.target_ids)
    reduced = tf.PhiForCausalLM(tf.PhiConfig(**{**COMMON, "vocab_size": len(rows) + 1})).eval()
    with torch.no_grad():
        full.lm_head.bias[:] = NEVER
        full.lm_head.bias[rows] = 3 * torch.randn(len(rows))
        reduced.model.layers.load_state_dict(full.model.layers.state_dict())
        reduced.model.final_layernorm.load_state_dict(full.model.final_layernorm.state_dict())
        reduced.model.embed_tokens.weight[:-1] = full.model.embed_tokens.weight[rows]
        reduced.lm_head.weight[:-1] = full.lm_head.weight[rows]
        reduced.lm_head.bias[:-1] = full.lm_head.bias[rows]
        reduced.lm_head.bias[-1] = NEVER
    known = KnownTokens(vocabulary=KNOWN, target_tokens=VOCAB)
    return TorchEngine(full, pool_tokens=512), TorchEngine(reduced, pool_tokens=512, known=known)


def fed(engine: Engine, tokens: tuple[int, ...], sampling: Sampling) -> RowResult:
    sequence = engine.open(sampling=sampling, prompt_tokens=4)
    row = replace(Row.chain(sequence, tokens, scored_from=len(tokens) // 2), candidates=6, wants_nll=True)
    (result,) = engine.forward([row])
    engine.release(sequence)
    return result


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_candidates_are_those_of_the_full_vocabulary(twins: tuple[Engine, Engine], sampling: Sampling) -> None:
    tokens = (3, 0, 99, 12, 150, 33, 33, 6)
    expected, found = (fed(engine, tokens, sampling) for engine in twins)
    assert found.nll == pytest.approx(expected.nll, abs=1e-4)
    for ours, theirs in zip(found.choices, expected.choices, strict=True):
        assert ours.token == theirs.token
        assert [token for token, _ in ours.candidates] == [token for token, _ in theirs.candidates]
        chances = [chance for _, chance in theirs.candidates]
        assert [chance for _, chance in ours.candidates] == pytest.approx(chances, abs=1e-4)


def test_an_unknown_token_shares_the_likelihood_of_the_reserved_id(twins: tuple[Engine, Engine]) -> None:
    _, reduced = twins
    known, unknown = (fed(reduced, (3, token), Sampling()) for token in (0, 1))
    assert known.nll is not None
    assert unknown.nll is not None
    assert unknown.nll > known.nll + math.log(VOCAB - len(KNOWN.target_ids))
