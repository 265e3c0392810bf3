"""A target's MTP layer as its verifier's drafter, named `mtp`: texts equal plain decoding."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cosine_engine.base import Row, RowResult
from cosine_engine.blocks.held_linear import HeldLinear
from cosine_engine.eagle.head_engine import HeadEngine
from cosine_engine.load_options import LoadOptions
from cosine_engine.models.home_model import HomeModel, load_with_home
from cosine_engine.models.served import ModelSource
from cosine_engine.processor import reads_float16
from cosine_engine.torch.engine import TorchEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedHome, SimulatedSwarm
from cosine_p2p.request.results import Generation
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.engine.eagle.small_mtp import LAYERS, WEIGHTS, write_checkpoint
from tests.engine.models.test_served import WORDS, save_tokenizer
from tests.engine.tiny_models import STEPPED, build, tiny_llama
from tests.thoroughness import quick_first

PROMPT = list(range(3, 33))
TOKENS = 32


def own_layer(folder: Path, quantize: str | None = None) -> HomeModel:
    """Load `--model FOLDER --draft-model mtp`."""
    save_tokenizer(folder, WORDS)
    engine = LoadOptions(device="cpu", dtype="float32", threads=1, quantize=quantize)
    source = ModelSource(model=str(folder), target=str(folder), engine=engine)
    home = ModelSource(model="mtp", target=str(folder))
    served, drafter = load_with_home(source, home, lambda event, fields: None, measure_s=0.05)
    assert drafter.target is served.engine
    return drafter


def generate(home: HomeModel, monkeypatch: pytest.MonkeyPatch, *, drafts: bool, temperature: float) -> Generation:
    """Generate with or without the MTP layer, which must have read its own drafts."""
    widths, forward = list[int](), HeadEngine.forward

    def noted(engine: HeadEngine, rows: Sequence[Row]) -> list[RowResult]:
        widths.extend(len(row.tokens) for row in rows if row.activations is None)
        return forward(engine, rows)

    async def run() -> Generation:
        async with SimulatedSwarm() as swarm:
            assert isinstance(home.target, TorchEngine)
            if drafts:
                await swarm.verifier(home.target, home=SimulatedHome(home.engine, target=home.target))
            else:
                await swarm.verifier(home.target)
            client = await swarm.client()
            run = await client.start(PROMPT, max_new_tokens=TOKENS, temperature=temperature, seed=1)
            async for _ in run.chunks():
                pass
            return run.result()

    with monkeypatch.context() as patched:
        patched.setattr(HeadEngine, "forward", noted)
        done = run_virtual(run())
    assert bool(widths) == drafts
    return done


@pytest.mark.skipif(not reads_float16(), reason="PyTorch has no such products for this processor.")
def test_it_is_held_in_float16_where_its_target_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint("qwen3_5", tmp_path)
    head = own_layer(tmp_path, quantize="float16").engine
    used, forward = set[HeldLinear](), HeldLinear.forward

    def noted(layer: HeldLinear, vectors: Tensor) -> Tensor:
        used.add(layer)
        return forward(layer, vectors)

    monkeypatch.setattr(HeldLinear, "forward", noted)
    head.forward([Row.chain(head.open(sampling=Sampling(), prompt_tokens=3), (3, 4, 5))])
    # Seven of the layer, the projection before it, and the target's output layer.
    assert len(used) >= 9


@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
def test_a_layer_that_knows_the_target_saves_most_passes(
    temperature: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint("glm4_moe", tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name].zero_()
    # Without residuals the next token depends only on the last, for the target and its MTP layer.
    more, width = f"model.layers.{LAYERS}.", len(weights["model.norm.weight"])
    weights[f"{more}enorm.weight"].fill_(1.0)
    weights[f"{more}eh_proj.weight"] = torch.cat((torch.eye(width), torch.zeros(width, width)), 1)
    weights[f"{more}shared_head.norm.weight"] = weights["model.norm.weight"].clone()
    save_file(weights, tmp_path / WEIGHTS, metadata={"format": "pt"})
    home = own_layer(tmp_path)
    helped, plain = (
        generate(home, monkeypatch, drafts=drafts, temperature=temperature) for drafts in (True, False)
    )
    assert helped.token_ids == plain.token_ids and plain.usage.completion_tokens == TOKENS
    # A greedy text repeats itself, and prompt lookup copies its end.
    assert helped.swarm.home_tokens > TOKENS // 4 and helped.swarm.rounds < TOKENS // 2


@pytest.mark.parametrize("model", ["llama", "mamba"])
def test_a_model_without_the_layer_is_refused_before_it_is_loaded(model: str, tmp_path: Path) -> None:
    (tiny_llama() if model == "llama" else build(STEPPED[model]())).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="no MTP layer"):
        own_layer(tmp_path)
