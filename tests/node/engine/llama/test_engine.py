"""What llama.cpp's engine does besides the contract of all engines: few lanes, small passes, failing devices."""

from typing import Any

import pytest

from cosine_node.engine.base import PREFIX, OutOfMemory, PassAbandoned, Row
from cosine_node.engine.llama.library import llama_library
from cosine_protocol.request import Sampling
from tests.node.engine.engines import llama_engine


def test_a_tree_with_more_branches_than_lanes_is_fed_in_several_passes() -> None:
    tokens = tuple(range(10, 70))
    row = Row(0, tokens, tuple(range(60)), (PREFIX,) * 60)
    wide, narrow = (llama_engine(pool_tokens=256, lanes=lanes) for lanes in (64, 3))
    found = []
    for engine in (wide, narrow):
        sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
        found.append([choice.token for choice in engine.forward([row])[0].choices])
        # A node whose lane was given up long ago leads on as if it had stayed.
        below = Row(sequence, (5,), (60,), (0,))
        found[-1].append(engine.forward([below])[0].choices[0].token)
        engine.keep(sequence, (1,))
        found[-1].append(engine.forward([Row.chain(sequence, [7])])[0].choices[0].token)
    assert found[0] == found[1]


def test_an_abandoned_pass_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = llama_engine(pool_tokens=512)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=4)
    engine.forward([Row.chain(sequence, [9])])
    engine.keep(sequence, [0])
    with monkeypatch.context() as patched:
        # As another thread does it while the pass is under way.
        patched.setattr(engine._model, "begin", engine.abandon)
        with pytest.raises(PassAbandoned):
            engine.forward([Row(sequence, (1, 2, 3), (0, 1, 2), (PREFIX, 0, 0))])
    assert (engine.live_tokens, engine.free_lanes) == (1, 63)
    engine.abandon()
    assert len(engine.forward([Row(sequence, (1, 2, 3), (0, 1, 2), (PREFIX, 0, 0))])[0].choices) == 3


def test_a_failing_device_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = llama_engine(pool_tokens=512)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=4)

    def fail(*_: Any) -> int:
        return -2

    with monkeypatch.context() as patched:
        patched.setattr(llama_library().c, "llama_decode", fail)
        with pytest.raises(OutOfMemory):
            engine.forward([Row.chain(sequence, [1, 2, 3])])
    assert (engine.live_tokens, engine.free_lanes) == (0, 64)
    assert engine.forward([Row.chain(sequence, [1, 2, 3])])[0].error is None


def test_cached_prefixes_give_their_lanes_to_requests() -> None:
    engine = llama_engine(pool_tokens=512, lanes=3)

    def serve(first: int) -> int:
        sequence = engine.open(sampling=Sampling(), prompt_tokens=1, scope="a")
        engine.forward([Row.chain(sequence, [first] * 20)])
        engine.keep(sequence, range(20))
        return sequence

    for first in range(5, 10):
        engine.release(serve(first))
    assert engine.cached_tokens == 3 * 16
    opened = [serve(first) for first in range(20, 23)]
    assert (engine.cached_tokens, engine.free_lanes) == (0, 0)
    for sequence in opened:
        engine.release(sequence)
