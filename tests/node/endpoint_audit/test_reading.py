"""Answers are read as the model would write them, in its own tokens."""

from functools import cache
from typing import Final

import numpy as np

from cosine_engine import zoo
from cosine_engine.base import Engine
from cosine_node.endpoint_audit.asking import EndpointAnswer, EndpointQuestion
from cosine_node.endpoint_audit.reading import Reading, read
from cosine_p2p.text.target import read_ends
from cosine_p2p.text.tokenizer import load_tokenizer
from cosine_protocol.request import Sampling
from tests.engine.random_serving import Asked, serve_alone
from tests.engine.staged import whole_engine

QUESTION: Final = EndpointQuestion("What is a lighthouse for?", 0.0, 0)
FOLDER: Final = zoo.location("target")
CODEC: Final = load_tokenizer(FOLDER)


@cache
def engine() -> Engine:
    return whole_engine(FOLDER, pool_tokens=512)


@cache
def own_tokens() -> tuple[int, ...]:
    prompt = CODEC.encode_chat([{"role": "user", "content": QUESTION.text}])
    return tuple(token for token, _ in serve_alone(engine(), Asked([*prompt], Sampling()), 16))


def reading(text: str, *told: tuple[str, float]) -> Reading:
    found = read(engine(), CODEC, EndpointAnswer(QUESTION, text, True, told), read_ends(FOLDER))
    assert found is not None
    return found


def test_a_models_own_text_departs_nowhere() -> None:
    found = reading(CODEC.decode(own_tokens()))
    assert (found.margins > 0).all() and np.isnan(found.told).all()
    assert found.tokens[:, 0].tolist() == [*own_tokens()]
    assert found.margins_of(found.tokens[:, 1]).max() < 0
    half = reading(CODEC.decode(own_tokens()[:8]) + "\N{REPLACEMENT CHARACTER}")
    assert half.margins.tolist() == found.margins[:8].tolist()


def test_another_text_departs_and_surprises() -> None:
    own, other = reading(CODEC.decode(own_tokens())), reading("Purple elephants vote by telegram on Sundays.")
    assert (other.margins < 0).mean() > 0.5
    assert other.excess / other.variance**0.5 > 1 > own.excess / own.variance**0.5


def test_what_is_told_belongs_to_the_same_tokens() -> None:
    text = CODEC.decode(own_tokens())
    first, second = (CODEC.decode([token]) for token in own_tokens()[:2])
    found = reading(text, (first, -0.5), (second[:1], -0.1), (second[1:], -0.2))
    assert found.told[0] == -0.5 and np.isnan(found.told[1:]).all()
