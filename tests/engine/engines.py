"""Engines of every kind, each as a function of the tokens of its pool, with their references."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import transformers as tf
from torch import nn

from cosine_engine.base import Engine
from cosine_engine.blocks.held_linear import hold
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.forward.row_tiles import Padding
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.kv_pool import PagePool
from cosine_engine.lanes.engine import LaneEngine
from cosine_engine.llama.library import llama_library
from cosine_engine.llama.model import LlamaContext, LlamaModel
from cosine_engine.load_options import VllmOptions
from cosine_engine.ngram import NgramEngine
from cosine_engine.openai.engine import ServerEngine
from cosine_engine.openai.server import TextServer
from cosine_engine.other_tokens.retokenized import RetokenizedEngine
from cosine_engine.processor import reads_float16
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.torch.loading import StoredBlocks, load_model
from cosine_engine.torch.pass_way import PassWay
from cosine_engine.vllm.environment import find_python
from cosine_engine.vllm.model import VllmEngine, VllmModel
from cosine_engine.vllm.process import VllmProcess
from cosine_engine.vocabulary import DraftVocabulary, KnownTokens
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.chains.engine import StagedEngine
from cosine_node.stages.host import StageEngine
from cosine_protocol.errors import UsageError
from tests.engine.gguf_models import gguf_of, tiny_folder, tiny_gguf, unfolded_gguf
from tests.engine.loaded import vllm_folder_engine
from tests.engine.local_chain import LocalLinks
from tests.engine.openai.reciting_server import RecitingServer
from tests.engine.recited import BYTES, PAIRS, VOCAB_TOKENS, byte_level
from tests.engine.staged import load_untried, ranges
from tests.engine.tiny_models import (
    COMMON,
    LATENT,
    OWN_ATTENTION,
    RECURRENT,
    SHARING,
    STEPPED,
    VOCAB,
    WINDOWED,
    build,
    tiny_llama,
)

_NUMBERS = count()


def llama_engine(
    model: Any = None,
    *,
    pool_tokens: int,
    weights: str = "F32",
    lanes: int = 64,
    pass_tokens: int = 63,
    grammars: Grammars | None = None,
) -> LaneEngine:
    """Return an engine of llama.cpp around a model of transformers, written as a file, or `tiny_llama`."""
    name = f"model-{next(_NUMBERS)}"
    file = GgufFile.open(tiny_gguf(weights) if model is None else gguf_of(model, name, weights=weights))
    loaded = LlamaModel(llama_library(), file)
    return LaneEngine(
        LlamaContext(loaded, tokens=pool_tokens, lanes=lanes, pass_tokens=pass_tokens, threads=1),
        pool_tokens=pool_tokens,
        vocab_tokens=loaded.vocab_tokens,
        context_tokens=file.context_tokens,
        numerics=f"gguf:{weights}+llama.cpp",
        grammars=grammars,
    )


def wide_llama() -> Any:
    """Return `tiny_llama` with heads of 32, the smallest of vLLM's kernels for the CPU."""
    return build(tf.LlamaConfig(**COMMON, head_dim=32))


def vllm_options() -> VllmOptions:
    """Return the options with the Python of vLLM; skip the test where there is none."""
    named = os.environ.get("COSINE_VLLM_PYTHON")
    options = VllmOptions(Path(named) if named else None)
    try:
        find_python(options)
    except UsageError as error:
        pytest.skip(str(error))
    return options


@lru_cache
def wide_folder() -> Path:
    folder = tiny_gguf().with_name("wide-source")
    wide_llama().save_pretrained(folder)
    return folder


@lru_cache
def vllm_process() -> VllmProcess:
    """Return a process of vLLM with `wide_llama`, started once; engines use it one after the other."""
    return vllm_folder_engine(wide_folder(), vllm=vllm_options(), pool_tokens=1024).vllm.process


def vllm_engine(pool_tokens: int, *, lanes: int = 64, pass_tokens: int = 63) -> VllmEngine:
    process = vllm_process()
    block_tokens = process.sizes["block_tokens"]
    blocks = 1 + -(-pool_tokens // block_tokens) + 2 * lanes
    return VllmEngine(
        VllmModel(lambda: process, blocks=blocks, block_tokens=block_tokens, lanes=lanes, pass_tokens=pass_tokens),
        pool_tokens=pool_tokens,
        vocab_tokens=VOCAB,
        context_tokens=256,
        numerics="vllm:float32",
    )


def chain_engine(pool_tokens: int) -> StagedEngine:
    """Return a head over two stages of `tiny_llama` in this process."""
    models = load_untried(tiny_folder(), ranges(1, 2), slots=pool_tokens)
    links = LocalLinks([StageEngine(model, PagePool(tokens=pool_tokens)) for model in models])
    return StagedEngine(links, context_tokens=256)


def held(model: Any, quantize: str) -> Any:
    """Return a model with converted weights."""
    hold(model, quantize)
    return model


def grouped_engine(bits: str, pool_tokens: int) -> TorchEngine:
    return TorchEngine(held(tiny_llama(), bits), pool_tokens=pool_tokens, way=PassWay.COMPILED)


def rounded(model: Any) -> Any:
    """Return the same model with the weights of its linear layers rounded to float16."""
    with torch.no_grad():
        for module in model.modules():
            if type(module) is nn.Linear:
                # A weight shared with the embedding becomes a separate matrix.
                module.weight = nn.Parameter(module.weight.half().float())
    return model


def llama_of_blocks(blocks: StoredBlocks) -> Any:
    """Return `tiny_llama` from a file in Q8_0, its matrices in blocks or dequantised."""
    return load_model(ModelFiles.in_folder(Path(unfolded_gguf("Q8_0"))), dtype=torch.float32, blocks=blocks).eval()


def reduced_engine(pool_tokens: int) -> TorchEngine:
    vocabulary = DraftVocabulary(tuple(range(0, VOCAB, 3)))
    inner = build(tf.LlamaConfig(**{**COMMON, "vocab_size": len(vocabulary.target_ids) + 1}))
    known = KnownTokens(vocabulary=vocabulary, target_tokens=VOCAB)
    return TorchEngine(inner, pool_tokens=pool_tokens, known=known)


def retokenized_engine(pool_tokens: int) -> RetokenizedEngine:
    """Return one whose target writes pairs of the inner model's bytes as one token."""
    inner = ScriptedEngine(vocab_tokens=VOCAB_TOKENS[BYTES], pool_tokens=pool_tokens)
    return RetokenizedEngine(inner, own=BYTES, target=PAIRS, vocab_tokens=VOCAB_TOKENS[PAIRS])


@lru_cache
def reciting_server() -> RecitingServer:
    return RecitingServer()


def server_engine(pool_tokens: int) -> ServerEngine:
    """Return one whose pool, of no memory, is larger."""
    server = TextServer(reciting_server().place, "m")
    return ServerEngine(server, byte_level(400), vocab_tokens=400, context_tokens=pool_tokens)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of engine. Its choices are those of `model` of transformers, or else of another engine of the kind."""

    make: Callable[[int], Engine]
    model: Callable[[], Any] | None = None


def _torch(make: Callable[[], Any], reference: Callable[[], Any] | None = None, **options: Any) -> Kind:
    return Kind(
        lambda pool_tokens: TorchEngine(make(), pool_tokens=pool_tokens, **options),
        make if reference is None else reference,
    )


def _built(config: Callable[[], Any], way: PassWay = PassWay.PACKED) -> Kind:
    return _torch(lambda: build(config()), way=way)


HALF_KIND: Final = _torch(
    lambda: held(tiny_llama(), "float16"), lambda: rounded(tiny_llama()), way=PassWay.COMPILED
)
WINDOWED_KIND: Final = _torch(
    lambda: held(build(WINDOWED["Gemma3"]()), "float16"),
    lambda: rounded(build(WINDOWED["Gemma3"]())),
    way=PassWay.COMPILED,
)
MODELS: Final[Mapping[str, Kind]] = {
    "torch": _torch(tiny_llama),
    "torch with padded rows": _torch(tiny_llama, padding=Padding(to_rectangle=True)),
    "weights in blocks": _torch(
        lambda: llama_of_blocks(StoredBlocks.ALL), lambda: llama_of_blocks(StoredBlocks.NONE)
    ),
    **({"weights in float16": HALF_KIND} if reads_float16() else {}),
    "llama.cpp": Kind(lambda pool_tokens: llama_engine(pool_tokens=pool_tokens), tiny_llama),
    "llama.cpp with few lanes": Kind(
        lambda pool_tokens: llama_engine(pool_tokens=pool_tokens, lanes=7, pass_tokens=5), tiny_llama
    ),
    "vLLM": Kind(vllm_engine, wide_llama),
    "vLLM with few lanes": Kind(lambda pool: vllm_engine(pool, lanes=7, pass_tokens=5), wide_llama),
    "chain of stages": Kind(chain_engine, tiny_llama),
}
"""Kinds of a whole Llama."""
COUPLED: Final[Mapping[str, Kind]] = {
    **MODELS,
    # Rounded inputs of products enlarge the rounding of transformers' attention.
    **{f"weights in {bits}": Kind(partial(grouped_engine, bits)) for bits in ("int4", "int8")},
    "reduced vocabulary": Kind(reduced_engine),
    "lookup": Kind(lambda pool: NgramEngine(pool_tokens=pool, vocab_tokens=VOCAB, context_tokens=512)),
    "scripted": Kind(lambda pool: ScriptedEngine(pool_tokens=pool, vocab_tokens=VOCAB)),
}
"""Kinds whose choices depend only on the path and the request's sampling."""
ALL: Final[Mapping[str, Kind]] = {
    **COUPLED,
    "retokenized": Kind(retokenized_engine),
    "texts of a server": Kind(server_engine),
}
ATTENTIONS: Final[Mapping[str, Kind]] = {
    "windowed": _built(WINDOWED["Gemma2"]),
    **({"windowed and compiled": WINDOWED_KIND} if reads_float16() else {}),
    "windowed with padded rows": _torch(lambda: build(WINDOWED["Gemma2"]()), padding=Padding(to_rectangle=True)),
    "latent": _built(LATENT["DeepseekV3"]),
    "sharing": _built(SHARING["Gemma3n"]),
    "own attention": _built(OWN_ATTENTION["bloom"], PassWay.CACHED),
    "recurrent": _built(RECURRENT["mamba2"], PassWay.CACHED),
    "stepped": _built(STEPPED["mamba"], PassWay.STEPPED),
}
"""PyTorch with other layouts of keys and values."""
