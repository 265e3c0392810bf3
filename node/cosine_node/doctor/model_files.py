"""A model as its files have it: is it here, whole, and does it fit on disk and in memory? No weights are read."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

from cosine_node import zoo
from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_p2p.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)
MAX_HEADER_BYTES: Final = 100 << 20
DTYPE_BYTES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}
QUANTISED_BYTES: Final[Mapping[str, float]] = {"int8": 1.0, "int4": 0.5}
POOL_TOKENS: Final = 32_768
"""Tokens of the KV pool a node reserves."""
TIGHT: Final = 0.85
"""The share of free memory from which on a model is a tight fit."""
FOREIGN_WEIGHTS: Final = ("*.bin", "*.gguf", "*.pt", "*.pth")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model as named by `source`. `folder` is None for one that is not on this machine; then `remote_bytes` is
    what would be downloaded, if the hub said, and `hub_error` why it did not."""

    source: str
    folder: Path | None = None
    problem: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    weight_bytes: int = 0
    parameters: int = 0
    damage: str = ""
    foreign_weights: bool = False
    tokenizer_digest: str = ""
    remote_bytes: int | None = None
    hub_error: str = ""

    @property
    def is_usable(self) -> bool:
        return self.folder is not None and not self.problem and not self.damage and self.weight_bytes > 0


def read_model(source: str) -> ModelFiles:
    """Look at a model's files; of a Hugging Face id at those downloaded already, else at what the hub says."""
    try:
        place = zoo.resolve(source)
    except UsageError as error:
        return ModelFiles(source=source, problem=str(error))
    if isinstance(place, Path):
        return read_folder(source, place)
    return _read_hub(source)


def read_folder(source: str, folder: Path) -> ModelFiles:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        tokenizer = TokenizerFiles.read(folder)
    except FileNotFoundError:
        return ModelFiles(source=source, folder=folder, problem="it has no config.json")
    except (OSError, ValueError, UsageError) as error:
        return ModelFiles(source=source, folder=folder, problem=f"it cannot be read: {error}")
    if not isinstance(config, dict):
        return ModelFiles(source=source, folder=folder, problem="its config.json is no object")
    weights = sorted(folder.glob("*.safetensors"))
    parameters, damage = _count(weights)
    return ModelFiles(
        source=source,
        folder=folder,
        config=config,
        weight_bytes=sum(file.stat().st_size for file in weights),
        parameters=parameters,
        damage=damage or _missing_shards(folder),
        foreign_weights=any(True for pattern in FOREIGN_WEIGHTS for _ in folder.glob(pattern)),
        tokenizer_digest=tokenizer.digest.hex() if tokenizer else "",
    )


def _count(weights: list[Path]) -> tuple[int, str]:
    """Parameters in some safetensors files, and the first damage found."""
    parameters = 0
    for file in weights:
        try:
            parameters += _parameters(file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return parameters, f"{file.name} is damaged: {error}"
    return parameters, ""


def _parameters(file: Path) -> int:
    """safetensors: 8 bytes little-endian header length, a JSON header, then the tensors' bytes."""
    size_bytes = file.stat().st_size
    with file.open("rb") as handle:
        header_bytes = int.from_bytes(handle.read(8), "little")
        if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, size_bytes - 8):
            raise ValueError("its header is cut off")
        header: dict[str, Any] = json.loads(handle.read(header_bytes))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    ends = max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
    if size_bytes != 8 + header_bytes + ends:
        raise ValueError(f"it has {size_bytes} bytes instead of {8 + header_bytes + ends}")
    return sum(prod(entry["shape"]) for entry in tensors)


def _missing_shards(folder: Path) -> str:
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
        named = sorted({str(name) for name in index["weight_map"].values()})
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its index of weights cannot be read: {error}"
    missing = [name for name in named if not (folder / name).is_file()]
    return f"{missing[0]} is missing ({len(missing)} of {len(named)} files)" if missing else ""


def _read_hub(source: str) -> ModelFiles:
    try:
        from huggingface_hub import HfApi, try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ModuleNotFoundError:
        return ModelFiles(source=source, hub_error="huggingface_hub is not installed")
    try:
        config = try_to_load_from_cache(source, "config.json")
        if isinstance(config, str):
            return read_folder(source, Path(config).parent)
        siblings = HfApi().model_info(source, timeout=4.0, files_metadata=True).siblings or ()
    except HFValidationError:
        return ModelFiles(source=source, problem="it is no folder here, no zoo:NAME and no Hugging Face id")
    except Exception as error:
        # Which errors there are depends on the HTTP library of its version.
        LOG.debug("the hub does not tell of %s", source, exc_info=True)
        return ModelFiles(source=source, hub_error=next(iter(str(error).splitlines()), type(error).__name__))
    sizes = [file.size or 0 for file in siblings if file.rfilename.endswith(".safetensors")]
    return ModelFiles(source=source, remote_bytes=sum(sizes))


def judge_model(model: ModelFiles, *, is_verifier: bool) -> Finding:
    """Whether a model's files can be served as they are."""
    what = f"model {model.source}"
    other = "Give a folder, zoo:NAME or a Hugging Face id with --model; `cosine-node zoo` lists the embedded ones."
    again = f"Fetch {model.source} again, or name another model with --model."
    if model.problem:
        return failure(what, model.problem, other)
    if model.folder is None:
        return _judge_remote(model, what, other)
    if model.damage:
        return failure(what, f"in {model.folder}: {model.damage}", again)
    if not model.weight_bytes:
        kinds = "only weights that are not safetensors" if model.foreign_weights else "no weights"
        fix = "Save it with `model.save_pretrained(FOLDER)`, which writes safetensors, or fetch it again."
        return failure(what, f"{model.folder} has {kinds}", fix)
    if is_verifier and not model.tokenizer_digest:
        return failure(what, f"{model.folder} has no tokenizer", again)
    return fine(what, f"{model.parameters / 1e6:.1f} million parameters, {_gib(model.weight_bytes)} on disk")


def _judge_remote(model: ModelFiles, what: str, other: str) -> Finding:
    if model.hub_error:
        fix = f"If the machine is meant to be online, look at its network; else check the name. {other}"
        return warning(what, f"it is not on this machine, and the hub does not tell of it: {model.hub_error}", fix)
    if not model.remote_bytes:
        return failure(what, "the hub has no safetensors of it", other)
    return fine(what, f"it is downloaded at the first start, {_gib(model.remote_bytes)}")


def needed_bytes(model: ModelFiles, *, dtype: str, quantize: str | None, on_cpu: bool) -> int:
    """Memory for the weights and the KV pool; 0 where the files do not tell.

    `dtype` is as of `join`: auto means float32 on a CPU and the stored one elsewhere.
    """
    if not model.is_usable or not model.parameters:
        return 0
    stored = model.weight_bytes / model.parameters
    width = DTYPE_BYTES.get(dtype, 4 if on_cpu else stored)
    return round(model.parameters * QUANTISED_BYTES.get(quantize or "", width)) + _pool_bytes(model.config, width)


def _pool_bytes(config: Mapping[str, Any], width: float) -> int:
    text = config.get("text_config", config)
    try:
        heads = text["num_attention_heads"]
        kept = text.get("num_key_value_heads") or heads
        size = text.get("head_dim") or text["hidden_size"] // heads
        return int(2 * POOL_TOKENS * text["num_hidden_layers"] * kept * size * width)
    except (AttributeError, KeyError, TypeError, ZeroDivisionError):
        return 0


def judge_memory(source: str, needed: int, free: int, *, where: str) -> Finding:
    """Whether a model fits into the `free` bytes of `where`; 0 stands for what is not known."""
    what = f"memory for {source}"
    if not needed or not free:
        return skipped(what, "the model's size is not known" if not needed else f"{where} does not tell its memory")
    found = f"it needs about {_gib(needed)} of {_gib(free)} free on {where}"
    fix = "Choose a smaller --model, --dtype bfloat16 or --quantize int8, or free memory."
    if needed > free:
        return failure(what, found, fix)
    return warning(what, f"{found}: a tight fit", fix) if needed > TIGHT * free else fine(what, found)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
