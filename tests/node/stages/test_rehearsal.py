"""A stage alone can be measured, whichever layers it holds."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import transformers as tf

from cosine_node.engine.base import Row
from cosine_node.engine.curve import measure_curve
from cosine_node.stages.opening import StageRehearsal
from cosine_protocol.request import Sampling
from tests.node.engine.staged import load_untried, ranges
from tests.node.engine.tiny_models import COMMON, build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("llama")
    build(tf.LlamaConfig(**(COMMON | {"num_hidden_layers": 3}))).save_pretrained(folder)
    yield folder


def test_first_middle_and_last_stages_can_be_fed_alone(folder: Path) -> None:
    ticks = count()
    for model in load_untried(folder, ranges(1, 2, 3), slots=96):
        engine = StageRehearsal(model)
        sequence = engine.open(sampling=Sampling(), prompt_tokens=3)
        [result] = engine.forward([Row.chain(sequence, (3, 4, 5))])
        assert len(result.choices) == (3 if model.layers.is_last else 0)
        engine.release(sequence)
        curve = measure_curve(engine, clock=lambda: float(next(ticks)), tokens=(1, 4), context_tokens=8)
        assert [tokens for tokens, _ in curve.points] == [1, 4]
        # Nothing is left of it: chains find the pool empty.
        assert engine.free_tokens == 96 and engine.cached_tokens == 0
