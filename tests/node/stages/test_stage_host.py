"""Chains at one stage have slots of their own, and activations are the same as bytes."""

from pathlib import Path

import pytest
import torch
import transformers as tf
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.engine.base import OutOfPages, Row
from cosine_node.engine.kv_pool import PagePool
from cosine_node.stages.engine import StageEngine, StageModel
from cosine_node.stages.host import HostedChain, StageHost, _free_range
from cosine_node.stages.operations import BadActivations
from cosine_protocol.request import Sampling
from tests.node.engine.staged import load_stages, load_untried, ranges
from tests.node.engine.tiny_models import COMMON, build

SLOTS = 96


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[StageModel]:
    folder = tmp_path_factory.mktemp("llama")
    config = tf.LlamaConfig(**(COMMON | {"num_hidden_layers": 2}))
    build(config).save_pretrained(folder)
    return load_untried(folder, ranges(1, 2), slots=SLOTS)


def opened(host: StageHost, pool_tokens: int) -> HostedChain:
    return host.open(pool_tokens=pool_tokens, window_pool_tokens=None, window_tokens=None, first_sequence=0)


def test_two_chains_at_a_stage_compute_what_each_computes_alone(models: list[StageModel]) -> None:
    hosts = [StageHost(model) for model in models]
    rows = [[Row.chain(0, tokens)] for tokens in ((3, 4, 5), (6, 7, 8, 9))]
    chains = [[opened(host, 40) for host in hosts] for _ in rows]
    alone = [[StageEngine(model, PagePool(tokens=SLOTS)) for model in models] for _ in rows]
    for stage in (*chains[0], *chains[1]):
        stage.books.open(sampling=Sampling(), prompt_tokens=3)
    for (first, last), (first_alone, last_alone), fed in zip(chains, alone, rows, strict=True):
        for engine in (first_alone, last_alone):
            engine.open(sampling=Sampling(), prompt_tokens=3)
        passed = first.run(fed, None)
        expected = first_alone.forward(fed, None)
        assert isinstance(passed, bytes) and isinstance(expected, torch.Tensor)
        assert passed == expected.numpy().tobytes()
        assert len(passed) == hosts[0].token_bytes * len(fed[0].tokens)
        assert last.run(fed, bytearray(passed)) == last_alone.forward(fed, expected)
    # What the one wrote, the other did not overwrite.
    for (first, last), (first_alone, last_alone) in zip(chains, alone, strict=True):
        fed = [Row(0, (10,), (9,), (2,))]
        passed, expected = first.run(fed, None), first_alone.forward(fed, None)
        assert isinstance(passed, bytes) and isinstance(expected, torch.Tensor)
        assert last.run(fed, passed) == last_alone.forward(fed, expected)
    for stage in (*chains[0], *chains[1]):
        stage.close()
    assert [host.chains for host in hosts] == [0, 0]


def test_bytes_of_another_length_and_what_is_not_finite_are_refused(models: list[StageModel]) -> None:
    first, last = (opened(StageHost(model), 32) for model in models)
    for stage in (first, last):
        stage.books.open(sampling=Sampling(), prompt_tokens=3)
    with pytest.raises(BadActivations, match="5 bytes of activations came for 1 tokens"):
        last.run([Row.chain(0, (3,))], bytes(5))
    weight = models[0].module.model.layers[0].mlp.down_proj.weight.data
    before = weight.clone()
    weight.fill_(torch.inf)
    with pytest.raises(BadActivations, match="What the layers gave is not finite"):
        first.run([Row.chain(0, (3,))], None)
    weight.copy_(before)


def test_slots_are_given_once_and_again_after_a_chain_has_ended(models: list[StageModel]) -> None:
    host = StageHost(models[0])
    chains = [opened(host, tokens) for tokens in (32, 16, 48)]
    with pytest.raises(OutOfPages, match="No 16 of 96 token slots are free together"):
        opened(host, 1)
    chains[1].close()
    with pytest.raises(OutOfPages, match="No 32 of 96"):
        opened(host, 17)
    opened(host, 9)
    assert host.chains == 3
    chains[0].close()
    with pytest.raises(OutOfPages, match="window tokens are more than the pool has"):
        host.open(pool_tokens=16, window_pool_tokens=1 << 30, window_tokens=4, first_sequence=0)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 30), st.data())
def test_ranges_never_overlap(sizes: list[int], all_slots: int, data: st.DataObject) -> None:
    taken: list[range] = []
    for size in sizes:
        try:
            found = _free_range(taken, size, all_slots)
        except OutOfPages:
            free = [slot for slot in range(all_slots) if not any(slot in other for other in taken)]
            assert not any(set(range(at, at + size)) <= set(free) for at in free)
        else:
            assert len(found) == size and found.stop <= all_slots
            assert not any(slot in other for other in taken for slot in found)
            taken.append(found)
        is_ended = data.draw(st.booleans())
        if taken and is_ended:
            taken.pop(data.draw(st.integers(0, len(taken) - 1)))


def test_a_stage_with_windows_of_its_own_needs_a_chain_with_windows(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    config = tf.Gemma3TextConfig(
        **(COMMON | {"num_hidden_layers": 2}), head_dim=16, sliding_window=5, layer_types=kinds
    )
    build(config).save_pretrained(tmp_path)
    [model] = load_stages(tmp_path, ranges(1, 2)[:1], slots=SLOTS, window_slots=48)
    host = StageHost(model)
    assert model.window_slots == 48
    with pytest.raises(OutOfPages, match="for which no pages are asked"):
        opened(host, 32)
    for _ in range(3):
        host.open(pool_tokens=32, window_pool_tokens=16, window_tokens=5, first_sequence=0)
    with pytest.raises(OutOfPages):
        host.open(pool_tokens=16, window_pool_tokens=16, window_tokens=5, first_sequence=0)
