"""A head over a chain of stages in this process survives bad logits."""

from pathlib import Path

import torch

from cosine_engine.base import BadLogits, Row
from cosine_engine.kv_pool import PagePool
from cosine_node.stages.host import StageEngine
from cosine_protocol.request import Sampling
from tests.engine.local_chain import LocalLinks
from tests.engine.staged import load_stages, ranges
from tests.node.stages.chains import POOL_TOKENS, head_of


def stages_of(folder: Path) -> list[StageEngine]:
    models = load_stages(folder, ranges(1, 3, 4), slots=POOL_TOKENS)
    return [StageEngine(model, PagePool(tokens=POOL_TOKENS), first_sequence=7) for model in models]


def test_a_row_without_finite_logits_fails_alone_and_is_taken_back_everywhere(folder: Path) -> None:
    stages = stages_of(folder)
    head = head_of(LocalLinks(stages))
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
