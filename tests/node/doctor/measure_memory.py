"""Writes measured_memory.md, a table of the memory that `doctor` announces and of what `join` then takes.

Models of 100 to 190 million parameters, each as a verifier on the CPU: `python -m tests.node.doctor.measure_memory`
takes some twenty minutes, 4 GiB of memory and 1 GiB of disk. Names of models measure these alone and write nothing.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import transformers as tf

from cosine_node import zoo
from cosine_p2p.text.tokenizer_files import NAMES

PAGE: Final = Path(__file__).with_name("measured_memory.md")
BEGIN: Final = "<!-- Made by `python -m tests.node.doctor.measure_memory`: -->\n"
END: Final = "<!-- end -->\n"
DTYPES: Final = ("float32", "bfloat16")
MIB: Final = 1 << 20
UNIT_BYTES: Final = {"GiB": 1 << 30, "MiB": 1 << 20}
STOP_S: Final = 30.0
"""A choice: a node without requests stops in a second or two."""


COMMON: Final[dict[str, Any]] = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
_EXPERTS: Final[dict[str, Any]] = {**COMMON, "intermediate_size": 1024, "num_hidden_layers": 6}

MODELS: Final[dict[str, tf.PreTrainedConfig]] = {
    "llama": tf.LlamaConfig(**COMMON),
    "qwen3": tf.Qwen3Config(**COMMON, head_dim=128),
    "gemma2": tf.Gemma2Config(**COMMON, head_dim=64),
    "gemma3_text": tf.Gemma3TextConfig(**COMMON, head_dim=64, sliding_window=512),
    "phi3": tf.Phi3Config(**COMMON, pad_token_id=0),
    "gpt2": tf.GPT2Config(n_embd=768, n_layer=12, n_head=12, vocab_size=32_000, n_positions=1024),
    "falcon": tf.FalconConfig(
        vocab_size=32_000,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_kv_heads=4,
        new_decoder_architecture=True,
        max_position_embeddings=2048,
    ),
    "mixtral": tf.MixtralConfig(**_EXPERTS, num_local_experts=8),
    "qwen3_moe": tf.Qwen3MoeConfig(
        **_EXPERTS, head_dim=64, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=512
    ),
    "qwen3_next": tf.Qwen3NextConfig(
        **_EXPERTS,
        head_dim=64,
        layer_types=["linear_attention", "full_attention"] * 3,
        linear_num_key_heads=8,
        linear_num_value_heads=16,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    ),
    "deepseek_v3": tf.DeepseekV3Config(
        **{**_EXPERTS, "num_key_value_heads": 12},
        moe_intermediate_size=512,
        n_routed_experts=16,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=4,
        first_k_dense_replace=1,
        q_lora_rank=256,
        kv_lora_rank=256,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
    ),
}
"""Models of 100 to 190 million parameters, with random weights, of architectures whose memory differs."""


class Measured(NamedTuple):
    """A model's memory in bytes, and its pool in tokens, as told before and as found once it serves."""

    model_type: str
    dtype: str
    told_bytes: int
    used_bytes: int
    told_tokens: int
    kv_tokens: int

    @property
    def ratio(self) -> float:
        return self.told_bytes / self.used_bytes


def measure(config: Any, dtype: str) -> Measured:
    """Write a model to a temporary folder, ask the doctor, then join with it alone."""
    with tempfile.TemporaryDirectory() as folder:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = tf.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
            model.save_pretrained(folder)
            del model
        for name in NAMES:
            if (zoo.tokenizer_folder() / name).is_file():
                shutil.copy(zoo.tokenizer_folder() / name, folder)
        options = ["--role", "verifier", "--model", folder, "--dtype", dtype, "--identity", f"{folder}/identity"]
        program = [sys.executable, "-m", "cosine_node"]
        asked = subprocess.run([*program, "doctor", *options, "--json"], stdout=subprocess.PIPE, text=True)
        [found] = [
            check["found"] for check in json.loads(asked.stdout)["checks"] if check["what"].startswith("memory for")
        ]
        told_bytes, told_tokens = told_memory(found)
        own = ["--host-maddr", "/ip4/127.0.0.1/tcp/0", "--log-format", "json"]
        node = subprocess.Popen(
            [*program, "join", *options, *own], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert node.stdout is not None
        try:
            kv_tokens = _until_ready(node.stdout)
            used_bytes = used_memory(node.pid)
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(STOP_S)
    return Measured(config.model_type, dtype, told_bytes, used_bytes, told_tokens, kv_tokens)


def told_memory(found: str) -> tuple[int, int]:
    """Bytes and tokens of the KV cache, in the doctor's sentence about a model's memory."""
    whole = re.search(r"takes about ([\d.]+) (GiB|MiB)", found)
    tokens = re.search(r"KV cache for (\d+) tokens", found)
    if whole is None:
        raise ValueError(f"the doctor does not tell: {found}")
    return round(float(whole[1]) * UNIT_BYTES[whole[2]]), int(tokens[1]) if tokens else 0


def _until_ready(lines: Any) -> int:
    """Read a node's events until it is ready; the tokens of its pool."""
    kv_tokens: int = 0
    for line in lines:
        # Libraries warn in words of their own.
        event: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
        kv_tokens = int(event.get("kv_tokens", kv_tokens))
        if event.get("event") == "ready":
            return kv_tokens
    raise RuntimeError("the node ended before it was ready")


def used_memory(process: int) -> int:
    """Resident memory (proc(5)) of a process and of the daemon that it has started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text("ascii").split()
    texts = [Path(f"/proc/{number}/status").read_text("ascii") for number in (process, *children)]
    return sum(1024 * int(found[1]) for text in texts if (found := re.search(r"VmRSS:\s+(\d+)", text)))


def write_table(rows: Sequence[Measured]) -> str:
    """The table of measurements, a line for each model and dtype."""
    lines = [
        "| model type | dtype | announced | used | announced / used | tokens of the cache |",
        "|---|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.model_type} | {row.dtype} | {row.told_bytes / MIB:.0f} MiB | {row.used_bytes / MIB:.0f} MiB "
        f"| {row.ratio:.2f} | {row.kv_tokens:,} |"
        for row in rows
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure the models that are named, or all of them and write the table."""
    rows = []
    for model_type in sys.argv[1:] or MODELS:
        for dtype in DTYPES:
            rows.append(measure(MODELS[model_type], dtype))
            sys.stdout.write(f"{write_table(rows).splitlines()[-1]} told {rows[-1].told_tokens:,}\n")
            sys.stdout.flush()
    if not sys.argv[1:]:
        before, rest = PAGE.read_text("utf-8").split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{write_table(rows)}\n{END}{rest.split(END, 1)[1]}", "utf-8")


if __name__ == "__main__":
    main()
