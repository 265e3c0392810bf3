"""Loading a model into vLLM, and its self-test; an error is one sentence with the reason."""

import os
from functools import partial
from pathlib import Path
from typing import Final

from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.lanes.self_test import check_exactness
from cosine_engine.load_options import TESTING, LoadOptions, VllmOptions
from cosine_engine.pool_size import TokenBytes, free_memory_bytes
from cosine_engine.self_test import POOL_TOKENS
from cosine_engine.vllm.environment import find_python
from cosine_engine.vllm.model import VllmEngine, VllmModel
from cosine_engine.vllm.process import ProcessLost, VllmProcess
from cosine_p2p.request.model_config import read_model_config, text_part
from cosine_protocol.errors import UsageError
from cosine_protocol.numerics import QUANTISED, VLLM

LANES: Final = 64
"""Branches of all requests together; and four for each request, if that is more."""
SPARE_BLOCKS: Final = 2
"""For each lane, beside the pool: a copy of the block in which it leaves its trunk, and one begun at its end."""
PASS_TOKENS: Final = 256
"""Tokens fed at once on a CPU: a pass can be abandoned after them."""
CARD_PASS_TOKENS: Final = 512
REPEATED: Final = 4
"""The tokens that vLLM is told of, in passes: some are fed again for branches."""


def _settings(folder: Path, options: VllmOptions, dtype: str) -> dict[str, object]:
    """vLLM's arguments for a model, which leave no decision to vLLM."""
    return {
        "model": str(folder),
        "dtype": dtype,
        "tensor_parallel_size": options.tensor_parallel,
        "pipeline_parallel_size": options.pipeline_parallel,
        "distributed_executor_backend": "uni" if options.processes == 1 else "mp",
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "disable_hybrid_kv_cache_manager": True,
        "enforce_eager": True,
        "seed": 0,
    }


def load_vllm(files: ModelFiles, how: LoadOptions) -> VllmEngine:
    """Load the engine of a folder.

    Raises `UsageError` for a Python without vLLM, a model that vLLM cannot load or is not exact in a self-test, and
    too little memory.
    """
    folder, options, dtype = files.folder, how.vllm, how.dtype
    python = find_python(options)
    threads = how.threads or max(1, len(os.sched_getaffinity(0)) // options.processes)
    config = read_model_config(folder)
    if dtype == "auto":
        # vLLM's own choice for weights in float32 is bfloat16.
        stored = text_part(config)
        dtype = str(stored.get("dtype") or stored.get("torch_dtype") or config.get("dtype") or dtype)
    told = _settings(folder, options, dtype)
    process = VllmProcess(python, told, threads=threads)
    sizes = process.sizes
    token_bytes, block_tokens = sizes["token_bytes"], sizes["block_tokens"]
    free_bytes = sizes["free_bytes"] or free_memory_bytes()
    size = how.pool_size.tokens(
        TokenBytes(token_bytes),
        context_tokens=sizes["context_tokens"],
        # The weights are not loaded yet.
        free_bytes=None if free_bytes is None else free_bytes - files.weights_bytes,
        on_card=sizes["on_card"],
    ).tokens
    size = -(-size // PAGE_TOKENS) * PAGE_TOKENS
    lanes = max(LANES, 4 * how.pool_size.requests)
    blocks = 1 + -(-max(size, POOL_TOKENS) // block_tokens) + SPARE_BLOCKS * lanes
    pass_tokens = CARD_PASS_TOKENS if sizes["on_card"] else PASS_TOKENS
    cache = {
        "pass_tokens": pass_tokens,
        "num_gpu_blocks_override": blocks,
        "kv_cache_memory_bytes": blocks * block_tokens * token_bytes,
        "max_model_len": min(sizes["context_tokens"], (blocks - 1) * block_tokens),
        "max_num_seqs": lanes,
        "max_num_batched_tokens": REPEATED * pass_tokens,
    }
    first = [process]

    def start() -> VllmProcess:
        begun = first.pop() if first else VllmProcess(python, told, threads=threads)
        begun.load(cache)
        return begun

    model = VllmModel(start, blocks=blocks, block_tokens=block_tokens, lanes=lanes, pass_tokens=pass_tokens)
    quantised = (config.get("quantization_config") or {}).get("quant_method")
    numerics = VLLM + sizes["dtype"] + (f"{QUANTISED}{quantised}" if quantised else "")

    engine_of = partial(
        VllmEngine,
        model,
        vocab_tokens=sizes["vocab_tokens"],
        context_tokens=sizes["context_tokens"],
        numerics=numerics,
    )
    how.tell(TESTING)
    is_exact = numerics == f"{VLLM}float32"
    try:
        check_exactness(engine_of(pool_tokens=POOL_TOKENS), name=folder.name, library="vLLM", is_exact=is_exact)
    except ProcessLost as error:
        raise UsageError(f"{folder.name} cannot be run by vLLM: {error}") from None
    return engine_of(pool_tokens=size, known=how.known, grammars=how.grammars)
