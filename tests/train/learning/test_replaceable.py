"""An engine is replaced only while it is unused."""

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling
from cosine_train.learning.replaceable import ReplaceableEngine
from tests.engine.random_serving import Asked, Position, serve_alone


def scripted(seed: int, vocab_tokens: int = 64) -> ScriptedEngine:
    return ScriptedEngine(model_seed=seed, vocab_tokens=vocab_tokens)


def text_of(engine: ReplaceableEngine | ScriptedEngine) -> list[Position]:
    return serve_alone(engine, Asked([3], Sampling()), 12)


def test_it_is_replaced_while_no_sequence_is_open_by_one_of_the_same_tokens() -> None:
    opened: list[int] = []
    engine = ReplaceableEngine(scripted(1), on_open=lambda: opened.append(1))
    first = text_of(engine)
    sequences = [engine.open(sampling=Sampling(), prompt_tokens=1) for _ in range(2)]
    for sequence in sequences:
        with pytest.raises(LocalProtocolError):
            engine.replace(scripted(2))
        engine.release(sequence)
    with pytest.raises(LocalProtocolError):
        engine.replace(scripted(2, vocab_tokens=65))
    engine.replace(scripted(2))
    assert (first, text_of(engine)) == (text_of(scripted(1)), text_of(scripted(2)))
    assert first != text_of(engine)
    assert len(opened) == 5
