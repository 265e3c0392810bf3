"""A head over a chain of stages in this process serves what the whole model serves, and survives the chain."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from cosine_node.chains.engine import ChainEngine
from cosine_node.engine.base import BadLogits, Row
from cosine_node.engine.kv_pool import PagePool
from cosine_node.stages.engine import StageEngine
from cosine_node.stages.operations import ChainLost
from cosine_protocol.request import Sampling
from tests.node.engine.local_chain import LocalChain
from tests.node.engine.random_serving import draw_requests, serve_alone, serve_together
from tests.node.engine.staged import load_stages, ranges, whole_engine
from tests.node.engine.tiny_models import COMMON, VOCAB, build

POOL_TOKENS = 160
FOUR: dict[str, Any] = COMMON | {"num_hidden_layers": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    build(tf.LlamaConfig(**FOUR)).save_pretrained(folder)
    return folder


def stages_of(folder: Path) -> list[StageEngine]:
    models = load_stages(folder, ranges(1, 3, 4), slots=POOL_TOKENS)
    return [StageEngine(model, PagePool(tokens=POOL_TOKENS), first_sequence=7) for model in models]


def head_of(stages: list[StageEngine]) -> ChainEngine:
    return ChainEngine(
        LocalChain(stages),
        PagePool(tokens=POOL_TOKENS),
        vocab_tokens=VOCAB,
        context_tokens=256,
        numerics="float32",
        first_sequence=7,
    )


def test_requests_together_over_a_chain_are_those_of_the_whole_model_alone(folder: Path) -> None:
    stages = stages_of(folder)
    head, whole = head_of(stages), whole_engine(folder, pool_tokens=POOL_TOKENS)
    assert (head.context_tokens, head.free_tokens) == (whole.context_tokens, whole.free_tokens)
    # A pool that holds what four of them need, but not what they leave cached besides.
    requests = draw_requests(6, vocab_tokens=VOCAB, longest=40, seed=3)
    for asked in requests:
        asked.expected = serve_alone(whole, asked, 8)
        assert serve_alone(head, asked, 8) == asked.expected
    assert serve_together(head, requests, at_once=3, seed=5, tolerance=1e-4) == 0
    assert (head.live_tokens, head.open_sequences) == (0, 0)


def test_a_row_without_finite_logits_fails_alone_and_is_taken_back_everywhere(folder: Path) -> None:
    stages = stages_of(folder)
    head = head_of(stages)
    good, bad = (head.open(sampling=Sampling(), prompt_tokens=3) for _ in range(2))
    head.forward([Row.chain(good, (3, 4)), Row.chain(bad, (5, 6))])
    weight = stages[-1].model.packed.model.lm_head.weight.data
    before = weight.clone()
    weight.fill_(torch.nan)
    [result] = head.forward([Row(bad, (7,), (2,), (1,))])
    assert isinstance(result.error, BadLogits)
    weight.copy_(before)
    head.forward([Row(good, (7,), (2,), (1,))])
    assert [stage.live_tokens for stage in stages] == [head.live_tokens] * 3 == [5] * 3


def test_a_lost_chain_fails_passes_and_nothing_else(folder: Path) -> None:
    stages = stages_of(folder)
    head = head_of(stages)
    sequence = head.open(sampling=Sampling(), prompt_tokens=3)
    row = Row.chain(sequence, (3, 4, 5))
    head.forward([row])
    head.keep(sequence, row.nodes)
    stages[1].model.packed.model.model.layers[1].mlp.down_proj.weight.data.fill_(torch.inf)
    for _ in range(2):
        with pytest.raises(ChainLost, match="A stage failed: Activations are no finite numbers"):
            head.forward([Row.chain(sequence, (6,))])
        assert head.live_tokens == 3
    head.release(sequence)
    assert head.free_tokens == POOL_TOKENS
    assert head.open(sampling=Sampling(), prompt_tokens=1) == sequence + 1
