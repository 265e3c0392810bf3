"""Stages in a chain compute what the whole model's engine computes, to the last bit, whatever is asked of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from cosine_node.engine.base import PREFIX, BadLogits, OutOfPages, Row
from cosine_node.engine.kv_pool import PagePool
from cosine_node.stages.engine import StageEngine
from cosine_node.stages.operations import BadActivations
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling
from tests.node.engine.random_serving import draw_requests, serve_alone, serve_together
from tests.node.engine.staged import in_step, load_stages, ranges, through
from tests.node.engine.tiny_models import ARCHITECTURES, COMMON, LATENT, VOCAB, WINDOWED, build
from tests.thoroughness import quick_first

ROOT = Path(__file__).parents[3]
TARGET = ROOT / "node" / "cosine_node" / "zoo" / "models" / "target"
FOUR: dict[str, Any] = COMMON | {"num_hidden_layers": 4}
MIXED = ["sliding_attention", "full_attention"] * 2
TINY: dict[str, Any] = {
    "llama": lambda: tf.LlamaConfig(**FOUR),
    "llama-tied": lambda: tf.LlamaConfig(**FOUR, tie_word_embeddings=True),
    "gpt2": lambda: tf.GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=4, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2
    ),
    "gemma2-windows": lambda: tf.Gemma2Config(**FOUR, head_dim=16, sliding_window=6, layer_types=MIXED),
    "gemma3-windows": lambda: tf.Gemma3TextConfig(**FOUR, head_dim=16, sliding_window=5, layer_types=MIXED),
    "mistral-windows": lambda: tf.MistralConfig(**FOUR, sliding_window=7),
}
PAIRS: dict[str, Any] = {
    f"{name}{suffix}": make
    for known, suffix in ((ARCHITECTURES, ""), (WINDOWED, "-window"), (LATENT, ""))
    for name, make in known.items()
    # Each of its layers is two for the cache, and the test's model has one of them.
    if name != "LongcatFlash"
}


@pytest.mark.parametrize("make", quick_first(TINY.values()), ids=TINY)
def test_chains_of_one_two_and_four_stages_serve_what_the_whole_model_serves(tmp_path: Path, make: Any) -> None:
    build(make()).save_pretrained(tmp_path)
    engine = in_step(tmp_path, ranges(4), ranges(1, 4), ranges(1, 2, 3, 4), pool_tokens=600)
    requests = draw_requests(5, vocab_tokens=VOCAB, longest=60, seed=3)
    for asked in requests:
        asked.expected = serve_alone(engine, asked, 8)
    # Trees of drafts, keeps and prunes, shared prefixes, preemptions: `InStep` compares every result.
    assert serve_together(engine, requests, at_once=4, seed=5, tolerance=1e-4) == 0
    assert engine.passes > 50


def test_the_embedded_target_over_one_two_and_four_stages_is_the_embedded_target() -> None:
    engine = in_step(TARGET, ranges(8), ranges(3, 8), ranges(2, 4, 6, 8), pool_tokens=1500)
    requests = draw_requests(6, vocab_tokens=4096, longest=40, seed=11)
    for asked in requests:
        asked.expected = serve_alone(engine, asked, 6)
    assert serve_together(engine, requests, at_once=8, seed=7, tolerance=1e-3) == 0


@pytest.mark.parametrize("make", quick_first(PAIRS.values()), ids=PAIRS)
def test_models_of_every_kind_can_be_cut_in_two(tmp_path: Path, make: Any) -> None:
    build(make()).save_pretrained(tmp_path)
    engine = in_step(tmp_path, ranges(1, 2), pool_tokens=200)
    sequence = engine.open(sampling=Sampling(temperature=0.8, seed=1), prompt_tokens=20)
    prompt = Row.chain(sequence, range(3, 23), scored_from=19)
    engine.forward([prompt])
    engine.keep(sequence, prompt.nodes)
    engine.forward([Row(sequence, (5, 6, 7, 8), (0, 1, 2, 3), (PREFIX, 0, 0, 2), candidates=3)])
    engine.keep(sequence, (0, 2))
    engine.forward([Row(sequence, (9,), (5,), (3,))])


def test_windows_hold_as_many_tokens_at_every_stage(tmp_path: Path) -> None:
    build(TINY["gemma2-windows"]()).save_pretrained(tmp_path)
    engine = in_step(tmp_path, ranges(1, 2, 4), pool_tokens=600, windowed=320, window_tokens=6)
    sequences = [engine.open(sampling=Sampling(seed=seed), prompt_tokens=40, scope="all") for seed in range(3)]
    for step in range(5):
        rows = [
            Row.chain(each, [3 + (7 * i + step) % 150 for i in range(20)], scored_from=19) for each in sequences
        ]
        engine.forward(rows)
        for row in rows:
            engine.keep(row.sequence, row.nodes)
    engine.release(sequences[0])
    again = engine.open(sampling=Sampling(), prompt_tokens=40, scope="all")
    tokens = [3 + (7 * i + step) % 150 for step in range(5) for i in range(20)]
    known = engine.reuse_prefix(again, tokens)
    assert known
    engine.forward([Row.chain(again, tokens[known:])])


def test_likelihoods_of_prompts_and_rows_that_ask_nothing_come_through(tmp_path: Path) -> None:
    build(TINY["llama"]()).save_pretrained(tmp_path)
    engine = in_step(tmp_path, ranges(2, 4), pool_tokens=200)
    first, second = (engine.open(sampling=Sampling(), prompt_tokens=9) for _ in range(2))
    chain = tuple(range(9))
    asks = Row(first, tuple(range(5, 14)), chain, (PREFIX, *chain[:-1]), scored_from=9, wants_nll=True)
    results = engine.forward([asks, Row.chain(second, (4, 5, 6), scored_from=3)])
    assert results[0].nll is not None
    assert not any(result.choices for result in results)


def test_two_chains_share_a_stage_by_ranges_of_its_slots(tmp_path: Path) -> None:
    build(TINY["llama"]()).save_pretrained(tmp_path)
    models = load_stages(tmp_path, ranges(2, 4), slots=96)
    alone, early, late = (
        [StageEngine(model, PagePool(tokens=48), first_slot=first) for model in models] for first in (0, 0, 48)
    )
    row = Row.chain(0, range(3, 40))
    for chain in (alone, early, late):
        for stage in chain:
            stage.open(sampling=Sampling(), prompt_tokens=37)
    expected = through(alone, [row])
    assert through(late, [row]) == expected
    for stage in late:
        stage.keep(0, row.nodes)
    # Where one chain's slots were the other's, this would write over the tokens that the next row looks at.
    through(early, [Row.chain(0, range(60, 97))])
    for stage in alone:
        stage.release(0)
        stage.open(sampling=Sampling(), prompt_tokens=37)
    assert through(late, [Row.chain(0, (7,))]) == _after(alone, row)
    with pytest.raises(LocalProtocolError, match="no 48 slots from 49 on"):
        StageEngine(models[0], PagePool(tokens=48), first_slot=49)


def _after(chain: list[StageEngine], row: Row) -> Any:
    fed = Row.chain(1, row.tokens)
    through(chain, [fed])
    for stage in chain:
        stage.keep(1, fed.nodes)
    return through(chain, [Row.chain(1, (7,))])


def test_a_stage_takes_no_activations_but_those_it_can_use(tmp_path: Path) -> None:
    build(TINY["llama"]()).save_pretrained(tmp_path)
    first, last = (
        StageEngine(model, PagePool(tokens=64)) for model in load_stages(tmp_path, ranges(2, 4), slots=64)
    )
    row = Row.chain(0, (3, 4, 5))
    for stage in (first, last, last):
        stage.open(sampling=Sampling(), prompt_tokens=3)
    passed = first.forward([row], None)
    assert isinstance(passed, torch.Tensor)
    wrong: list[tuple[Any, str]] = [
        (None, "with no activations"),
        (passed[:2], r"of the shape \[2, 64\], not \[3, 64\]"),
        (passed[None], r"of the shape \[1, 3, 64\]"),
        (passed.double(), "no finite numbers in float32"),
        (torch.where(passed == passed[1, 5], torch.nan, passed), "no finite numbers"),
        (torch.where(passed == passed[2, 0], torch.inf, passed), "no finite numbers"),
    ]
    for activations, said in wrong:
        with pytest.raises(BadActivations, match=said):
            last.forward([row], activations)
        assert last.live_tokens == 0
    with pytest.raises(BadActivations, match="takes tokens"):
        first.forward([row], passed)
    with pytest.raises(OutOfPages):
        last.forward([Row.chain(1, range(3, 40)), Row.chain(0, range(3, 40))], torch.zeros(74, 64))
    assert len(last.forward([row], passed)) == 1


def test_rows_without_finite_logits_stay_fed_until_the_head_prunes_them(tmp_path: Path) -> None:
    build(TINY["llama"]()).save_pretrained(tmp_path)
    models = load_stages(tmp_path, ranges(2, 4), slots=64)
    models[1].module.lm_head.weight.data.fill_(torch.nan)
    stages = [StageEngine(model, PagePool(tokens=64)) for model in models]
    row = Row.chain(0, (3, 4, 5))
    for stage in stages:
        stage.open(sampling=Sampling(), prompt_tokens=3)
    [result] = through(stages, [row])
    assert isinstance(result.error, BadLogits)
    assert [stage.live_tokens for stage in stages] == [3, 3]
