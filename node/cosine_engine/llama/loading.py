"""Loading a GGUF file into llama.cpp, and its self-test; an error is one sentence with the reason."""

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final
from weakref import finalize

import numpy as np
import numpy.typing as npt

from cosine_engine.gguf.file import GgufFile
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.lanes.engine import LaneEngine
from cosine_engine.lanes.self_test import check_exactness
from cosine_engine.llama.library import LlamaLibrary, llama_library
from cosine_engine.llama.model import LlamaContext, LlamaModel, token_bytes_of
from cosine_engine.load_options import TESTING, LoadOptions
from cosine_engine.pool_size import TokenBytes, free_memory_bytes
from cosine_engine.processes.answer import answer_of
from cosine_engine.self_test import POOL_TOKENS
from cosine_protocol.errors import UsageError

Floats = npt.NDArray[np.float32]

LANES: Final = 128
"""Branches of all requests together, at most 256 in llama.cpp. Each costs a row of logits."""
PASS_TOKENS: Final = 63
"""On a processor: from 64 tokens on llama.cpp computes attention in tiles, where rows depend on each other."""
CARD_PASS_TOKENS: Final = 512
"""On a card, which is slow with small passes: llama.cpp's default."""
LOAD_CHECK_S: Final = 60.0
"""Time limit of a process that reads a header, which takes seconds for the largest."""
METAL: Final = ("metal", "mtl")
DEVICE_NAMES: Final = {"cuda": ("cuda",), "vulkan": ("vulkan",), "metal": METAL, "mps": METAL}
"""The prefixes of ggml's device names, by the name that a user gives."""


def load_llama(file: GgufFile, how: LoadOptions) -> LaneEngine:
    """Load the engine of a GGUF file.

    Raises `UsageError` for a file that is damaged or not exact in a self-test, an unknown device, and too little
    memory.
    """
    library = llama_library()
    handle = find_device(library, how.device)
    check_loads(file.path)
    with ExitStack() as on_error:
        model = LlamaModel(library, file, device=handle)
        on_error.callback(model.close)
        size = how.pool_size.tokens(
            TokenBytes(token_bytes_of(file)),
            context_tokens=file.context_tokens,
            free_bytes=free_memory_bytes() if handle is None else library.free_bytes(handle),
            on_card=handle is not None,
        ).tokens
        context = LlamaContext(
            model,
            tokens=max(-(-size // PAGE_TOKENS) * PAGE_TOKENS, POOL_TOKENS),
            lanes=LANES,
            pass_tokens=PASS_TOKENS if handle is None else CARD_PASS_TOKENS,
            threads=how.threads or default_threads(model.parameters),
        )
        on_error.callback(context.close)
        engine_of = partial(
            LaneEngine,
            context,
            vocab_tokens=model.vocab_tokens,
            context_tokens=file.context_tokens,
            numerics=f"gguf:{file.weights}+llama.cpp",
        )
        how.tell(TESTING)
        is_exact = file.weights == "F32"
        check_exactness(
            engine_of(pool_tokens=POOL_TOKENS), name=file.path.name, library="llama.cpp", is_exact=is_exact
        )
        engine = engine_of(pool_tokens=size, known=how.known, grammars=how.grammars)
        # llama.cpp's memory is freed with the engine, which `--unload-after` drops.
        freeing = finalize(engine, on_error.pop_all().close)
        # At the end of the process the system frees it.
        freeing.atexit = False
    return engine


def check_loads(path: Path) -> None:
    """Raise `UsageError` for a file that llama.cpp cannot load, or that would end this process.

    It is loaded without weights in another process, since llama.cpp does not report violated assumptions.
    """
    try:
        answer_of("cosine_engine.llama.process:loads", str(path), timeout_s=LOAD_CHECK_S)
    except TimeoutError:
        raise UsageError(f"{path.name} cannot be loaded by llama.cpp: it takes over {LOAD_CHECK_S:g} s.") from None
    except (OSError, ValueError) as error:
        said = str(error).rpartition("/llama.cpp/")[2]
        raise UsageError(
            f"{path.name} cannot be loaded by llama.cpp, which would end this process ({said}); fetch it again."
        ) from None


def default_threads(weights: int) -> int:
    """Return the default number of threads of a model: one for a small model, else all cores."""
    # Several nodes on one machine run small models, and would wait for each other's threads.
    if weights < 100_000_000:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_device(library: LlamaLibrary, name: str) -> int | None:
    """Return ggml's handle of a device, None for the processor; `auto` is the first card. Raises `UsageError`."""
    devices = library.devices()
    if name == "cpu":
        return None
    if name == "auto":
        return next(iter(devices.values()), None)
    kind, _, number = name.lower().partition(":")
    starts = DEVICE_NAMES.get(kind)
    if starts is None or (number and not number.isdecimal()):
        raise UsageError(f"'{name}' is no device of llama.cpp; use auto, cpu, cuda, cuda:0, vulkan or metal.")
    found = [handle for known, handle in devices.items() if known.startswith(starts)]
    if int(number or 0) >= len(found):
        here = ", ".join(("cpu", *devices))
        raise UsageError(f"The installed llama.cpp has no device '{name}' on this machine; it has {here}.")
    return found[int(number or 0)]
