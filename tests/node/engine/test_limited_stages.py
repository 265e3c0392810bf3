"""Under a limit of address space in which a whole model cannot be loaded, its parts are loaded and serve it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import torch
import transformers as tf

from cosine_node.engine.base import Row
from cosine_node.engine.kv_pool import PagePool
from cosine_node.stages.engine import StageEngine
from cosine_protocol.request import Sampling
from cosine_protocol.stage_messages import LayerRange
from tests.node.engine.limited_stage import PROMPT, SLOTS
from tests.node.engine.staged import load_untried, ranges
from tests.node.engine.tiny_models import COMMON

LAYERS: Final = 12
LIMIT_MIB: Final = 125
"""Less than the whole model's 192 MiB; a third of its layers takes 64 MiB."""


def run(folder: Path, part: LayerRange, read: str, write: Path) -> "subprocess.CompletedProcess[str]":
    numbers = (part.first, part.end, part.layers, LIMIT_MIB)
    return subprocess.run(
        (sys.executable, "-m", "tests.node.engine.limited_stage", folder, *map(str, numbers), read, write),
        capture_output=True,
        text=True,
        check=False,
        # Each of glibc's arenas would take 64 MiB of address space.
        env=os.environ | {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_parts_serve_a_model_that_does_not_fit_as_a_whole(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": LAYERS, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}
    config = tf.LlamaConfig(**(COMMON | sizes | {"num_key_value_heads": 8, "head_dim": 64}))
    torch.manual_seed(5)
    model = tf.LlamaForCausalLM(config)
    assert sum(weight.nbytes for weight in model.parameters()) > 1.5 * (LIMIT_MIB << 20)
    # In several files, as large models are: safetensors maps each for a moment, for its header.
    model.save_pretrained(tmp_path / "model", max_shard_size="20MB")
    del model
    folder = tmp_path / "model"
    whole = run(folder, LayerRange.whole(LAYERS), "-", tmp_path / "whole")
    # PyTorch says "not enough memory", Python `MemoryError`.
    assert whole.returncode and "memory" in whole.stderr.lower(), whole.stderr
    read = "-"
    for part in ranges(4, 8, LAYERS):
        done = run(folder, part, read, tmp_path / str(part))
        assert done.returncode == 0, done.stderr
        read = str(tmp_path / str(part))
    [served] = load_untried(folder, [LayerRange.whole(LAYERS)], slots=SLOTS)
    engine = StageEngine(served, PagePool(tokens=SLOTS))
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(PROMPT))
    found = engine.forward([Row.chain(sequence, PROMPT)], None)
    assert isinstance(found, list)
    assert json.loads(Path(read).read_text("utf-8")) == [choice.token for choice in found[0].choices]
