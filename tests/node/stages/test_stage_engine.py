"""Stages in a chain compute the same results as the whole model's engine, bit by bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from cosine_engine.base import PREFIX, OutOfPages, Row
from cosine_engine.forward.support import UnsupportedModel
from cosine_engine.kv_pool import PagePool
from cosine_node.stages.frames import BadActivations
from cosine_node.stages.host import HostedChain, StageEngine, StageHost, StageModel, load_part
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from cosine_protocol.stage import LayerRange
from tests.engine.random_serving import draw_requests, serve_alone, serve_together
from tests.engine.staged import InStep, in_step, load_stages, ranges
from tests.engine.tiny_models import (
    ARCHITECTURES,
    LATENT,
    OWN_ATTENTION,
    RECURRENT,
    SHARING,
    VOCAB,
    WINDOWED,
    build,
)
from tests.node.stages.chains import FOUR, POOL_TOKENS, save_tiny
from tests.thoroughness import soak_rest

MIXED = ["sliding_attention", "full_attention"] * 2
TINY: dict[str, Any] = {
    "llama-tied": lambda: tf.LlamaConfig(**FOUR, tie_word_embeddings=True),
    "llama": lambda: tf.LlamaConfig(**FOUR),
    "gpt2": lambda: tf.GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=4, n_head=4, n_positions=256),
    "mixtral": lambda: tf.MixtralConfig(**FOUR, num_local_experts=4),
    "gemma2-windows": lambda: tf.Gemma2Config(**FOUR, head_dim=16, sliding_window=6, layer_types=MIXED),
}
PAIRS: dict[str, Any] = {
    f"{name}{suffix}": make
    for known, suffix in ((ARCHITECTURES, ""), (WINDOWED, "-window"), (LATENT, ""))
    for name, make in known.items()
    # Its layers count twice in the cache, and the test's model has a single one.
    if name != "LongcatFlash"
}


def check_in_step(engine: InStep, *, requests: int, tokens: int, tolerance: float, longest: int = 40) -> None:
    """Trees of drafts, keeps and prunes, shared prefixes, preemptions: `InStep` compares every result."""
    drawn = draw_requests(requests, vocab_tokens=engine.vocab_tokens, longest=longest, seed=3)
    for asked in drawn:
        asked.expected = serve_alone(engine, asked, tokens)
    assert serve_together(engine, drawn, at_once=4, seed=5, tolerance=tolerance) == 0
    assert engine.passes > 50


@pytest.mark.parametrize("make", soak_rest(TINY.values()), ids=TINY)
def test_chains_of_one_two_and_four_stages_serve_what_the_whole_model_serves(tmp_path: Path, make: Any) -> None:
    build(make()).save_pretrained(tmp_path)
    engine = in_step(tmp_path, ranges(4), ranges(1, 4), ranges(1, 2, 3, 4), pool_tokens=600)
    check_in_step(engine, requests=5, tokens=8, tolerance=1e-4, longest=60)


@pytest.mark.parametrize("make", soak_rest(PAIRS.values(), 2), ids=PAIRS)
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


def test_a_stage_takes_no_activations_but_those_it_can_use(folder: Path) -> None:
    first, last = (StageEngine(model, PagePool(tokens=64)) for model in load_stages(folder, ranges(2, 4), slots=64))
    row = Row.chain(0, (3, 4, 5))
    for stage in (first, last, last):
        stage.open(sampling=Sampling(), prompt_tokens=3)
    passed = first.forward([row], None)
    assert isinstance(passed, torch.Tensor)
    for wrong in (torch.nan, torch.inf):
        with pytest.raises(BadActivations, match="not finite numbers in float32"):
            last.forward([row], torch.where(passed == passed[1, 5], wrong, passed))
        assert last.live_tokens == 0
    with pytest.raises(OutOfPages):
        last.forward([Row.chain(1, range(3, 40)), Row.chain(0, range(3, 40))], torch.zeros(74, 64))
    assert len(last.forward([row], passed)) == 1


def opened(host: StageHost, pool_tokens: int) -> HostedChain:
    return host.open(pool_tokens=pool_tokens, first_sequence=0)


def test_two_chains_at_a_stage_compute_what_each_computes_alone(halves: list[StageModel]) -> None:
    hosts = [StageHost(model) for model in halves]
    rows = [[Row.chain(0, tokens)] for tokens in ((3, 4, 5), (6, 7, 8, 9))]
    chains = [[opened(host, 40) for host in hosts] for _ in rows]
    alone = [[StageEngine(model, PagePool(tokens=POOL_TOKENS)) for model in halves] for _ in rows]
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
    # Neither chain overwrote the slots of the other.
    for (first, last), (first_alone, last_alone) in zip(chains, alone, strict=True):
        fed = [Row(0, (10,), (9,), (2,))]
        passed, expected = first.run(fed, None), first_alone.forward(fed, None)
        assert isinstance(passed, bytes) and isinstance(expected, torch.Tensor)
        assert last.run(fed, passed) == last_alone.forward(fed, expected)
    for stage in (*chains[0], *chains[1]):
        stage.close()
    assert [host.chains for host in hosts] == [0, 0]


TRIED = ["llama", "llama-tied", "gpt2", "mixtral"]
WEIGHTS = "model.safetensors"


def in_a_file_a_layer(folder: Path, list_name: str) -> None:
    """Split a folder's weights into a file for each layer, the embedding, and the rest."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    of_file: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        parts = key.split(".")
        name = "rest"
        if list_name in parts:
            name = f"layer{parts[parts.index(list_name) + 1]}"
        elif parts[-2] in ("embed_tokens", "wte"):
            name = "embedding"
        of_file.setdefault(f"{name}.safetensors", {})[key] = tensor
    for name, held in of_file.items():
        save_file(held, folder / name, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {key: name for name, held in of_file.items() for key in held}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize("kind", soak_rest(TRIED, 2))
def test_files_of_other_parts_need_not_be_there(tmp_path: Path, kind: str) -> None:
    whole = build(TINY[kind]())
    whole.save_pretrained(tmp_path)
    in_a_file_a_layer(tmp_path, "h" if kind == "gpt2" else "layers")
    is_tied = whole.get_output_embeddings().weight is whole.get_input_embeddings().weight
    for part in ranges(1, 3, 4):
        needed = {f"layer{index}" for index in range(part.first, part.end)} | {"rest"}
        if part.is_first or (part.is_last and is_tied):
            needed.add("embedding")
        moved = [path for path in tmp_path.glob("*.safetensors") if path.stem not in needed]
        assert moved
        for path in moved:
            path.rename(path.with_suffix(".gone"))
        model = load_part(str(tmp_path), part, dtype=torch.float32)
        for path in moved:
            path.with_suffix(".gone").rename(path)
        for name, weight in model.named_parameters():
            torch.testing.assert_close(weight, whole.get_parameter(name), rtol=0, atol=0, msg=name)


def test_what_cannot_be_loaded_in_parts_is_refused_with_the_reason(tmp_path: Path) -> None:
    save_tiny(tmp_path / "llama")
    with pytest.raises(UnsupportedModel, match="it has 4 layers, not 5"):
        load_part(str(tmp_path / "llama"), LayerRange.whole(5), dtype=torch.float32)
    tensors = load_file(tmp_path / "llama" / WEIGHTS)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "llama" / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight, for layers 0:2"):
        load_part(str(tmp_path / "llama"), LayerRange(first=0, end=2, layers=4), dtype=torch.float32)
    (tmp_path / "llama" / WEIGHTS).unlink()
    with pytest.raises(UsageError, match=r"has no file model\.safetensors, nor"):
        load_part(str(tmp_path / "llama"), LayerRange(first=0, end=2, layers=4), dtype=torch.float32)
    build(LATENT["LongcatFlash"]()).save_pretrained(tmp_path / "longcat")
    with pytest.raises(UnsupportedModel, match="cannot be identified"):
        load_part(str(tmp_path / "longcat"), LayerRange(first=0, end=1, layers=2), dtype=torch.float32)
    config = json.loads((tmp_path / "llama" / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UsageError, match="is stored in gptq and cannot be loaded in parts"):
        load_part(str(tmp_path / "llama"), LayerRange.whole(4), dtype=torch.float32)


UNCUT: dict[str, Any] = {
    "bloom": (OWN_ATTENTION["bloom"], 2, "passes cannot be packed"),
    "lfm2": (RECURRENT["lfm2"], 2, "passes cannot be packed"),
    "gemma3n": (SHARING["Gemma3n"], 6, "share their keys and values"),
    "gemma4": (SHARING["Gemma4"], 6, "share their keys and values"),
}


@pytest.mark.parametrize("kind", soak_rest(UNCUT))
def test_models_that_cannot_be_cut_are_refused(tmp_path: Path, kind: str) -> None:
    make, layers, reason = UNCUT[kind]
    build(make()).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=reason):
        load_stages(tmp_path, ranges(layers // 2, layers), slots=64)
