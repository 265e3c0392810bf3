"""Engines of folders and files, with the options of tests."""

from pathlib import Path
from typing import Any

from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.lanes.engine import LaneEngine
from cosine_engine.llama.loading import load_llama
from cosine_engine.load_options import LoadOptions
from cosine_engine.pool_size import PoolSize
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.torch.loading import load_engine
from cosine_engine.vllm.loading import load_vllm
from cosine_engine.vllm.model import VllmEngine


def options(*, pool_tokens: int | PoolSize = 64, device: str = "cpu", **others: Any) -> LoadOptions:
    size = pool_tokens if isinstance(pool_tokens, PoolSize) else PoolSize(exact_tokens=pool_tokens)
    return LoadOptions(device=device, pool_size=size, **others)


def torch_engine(folder: Path | str, **others: Any) -> TorchEngine:
    return load_engine(ModelFiles.in_folder(Path(folder)), options(**others))


def vllm_folder_engine(folder: Path, **others: Any) -> VllmEngine:
    return load_vllm(ModelFiles.in_folder(folder), options(device="auto", threads=1, **others))


def llama_file_engine(file: Path, **others: Any) -> LaneEngine:
    return load_llama(GgufFile.open(file), options(**others))
