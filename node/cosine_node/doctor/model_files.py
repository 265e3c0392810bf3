"""A model's files: they are here, whole, and fit on disk and in memory. No weights are read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Final

from cosine_node import zoo
from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_node.doctor.machine import EngineFacts
from cosine_node.engine.pool_size import PoolSize, PoolTokens, TokenBytes, free_memory_bytes
from cosine_node.models.engine_kind import EngineChoice, EngineKind, check_engine_options
from cosine_node.models.hub import ANSWER_S as HUB_ANSWER_S
from cosine_node.models.hub import HubModel, HubRefusal
from cosine_node.models.tokenizer_conversion import convert_tokenizer
from cosine_p2p.gguf.header import part_names
from cosine_p2p.request.generation_config import read_eos, read_generation_config
from cosine_p2p.request.model_config import FILE_NAME as CONFIG_FILE
from cosine_p2p.request.model_config import read_model_config
from cosine_p2p.storage.bounded_file import read_json
from cosine_p2p.text.tensor_hashes import MAX_HEADER_BYTES
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError

DAMAGED: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Whatever reading a damaged file may raise."""

# Bytes of one weight.
DTYPE_BYTES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}
AS_STORED: Final = "stored"
"""Stands for the types of a file's own weights, beside which llama.cpp keeps keys and values in 16 bits."""
QUANTISED_BYTES: Final[Mapping[str, float]] = {"float16": 2.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model as named by `source`, and what is wrong with it.

    `folder` is None for one that is not on this machine; then `remote_bytes` is what would be downloaded, if the
    hub said, and `hub_error` why it did not. `problem` is about a model as a whole, `damage` about one file.
    `foreign_weights` are not safetensors, and the engine does not load them: most can run code (pickle).
    `generation_problem` is the sentence with which `join` refuses what a folder's files say of texts.
    """

    source: str
    folder: Path | None = None
    problem: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    weight_bytes: int = 0
    parameters: int = 0
    damage: str = ""
    foreign_weights: bool = False
    tokenizer_digest: str = ""
    generation_problem: str = ""
    remote_bytes: int | None = None
    hub_error: str = ""

    @property
    def is_usable(self) -> bool:
        return self.folder is not None and not self.problem and not self.damage and self.weight_bytes > 0


def read_model(source: str) -> ModelFiles:
    """Look at a model's files; of a Hugging Face id at those downloaded already, else at what the hub says."""
    try:
        resolved = zoo.resolve(source)
    except UsageError as error:
        return ModelFiles(source=source, problem=str(error))
    if isinstance(resolved, Path):
        return read_folder(source, resolved) if resolved.is_dir() else read_gguf(source, resolved)
    return _read_hub(source)


def read_gguf(source: str, file: Path) -> ModelFiles:
    """Look at a GGUF file, which is unfolded for that."""
    # They need numpy, which a client has not.
    from cosine_node.gguf.file import GgufFile
    from cosine_node.gguf.unfolding import unfold

    try:
        folder = unfold(file, is_served=True)
        model = GgufFile.open(file)
    except UsageError as error:
        return ModelFiles(source=source, folder=file.parent, problem=str(error))
    read = read_folder(source, folder)
    weight_bytes = sum(part.stat().st_size for part in model.parts)
    return replace(read, weight_bytes=weight_bytes, parameters=model.parameters)


def read_folder(source: str, folder: Path) -> ModelFiles:
    """Look at the files of a model in a folder."""
    if not (folder / CONFIG_FILE).is_file():
        return ModelFiles(source=source, folder=folder, problem=f"it has no {CONFIG_FILE}")
    try:
        config = read_model_config(folder)
        convert_tokenizer(folder)
        tokenizer = TokenizerFiles.read(folder)
    except (OSError, UsageError) as error:
        return ModelFiles(source=source, folder=folder, problem=str(error))
    weights = sorted(folder.glob("*.safetensors"))
    parameters, damage = 0, ""
    for file in weights:
        try:
            parameters += _parameters(file)
        except DAMAGED as error:
            damage = f"{file.name} is damaged: {error}"
            break
    generation_problem = ""
    try:
        read_eos(folder)
        read_generation_config(folder)
        if tokenizer is not None:
            TextTokenizer(tokenizer.files)
    except UsageError as error:
        generation_problem = str(error)
    return ModelFiles(
        source=source,
        folder=folder,
        config=config,
        weight_bytes=sum(file.stat().st_size for file in weights),
        parameters=parameters,
        damage=damage or _missing_shards(folder),
        foreign_weights=any(file.suffix in (".bin", ".gguf", ".pt", ".pth") for file in folder.glob("*")),
        tokenizer_digest=tokenizer.digest.hex() if tokenizer else "",
        generation_problem=generation_problem,
    )


def _parameters(file: Path) -> int:
    """Count the parameters in a file; raises one of many errors for one that is damaged.

    safetensors: 8 bytes little-endian header length, a JSON header, then the tensors' bytes.
    """
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
    """The damage of an index that names files which are not there; "" if there is none."""
    try:
        index = read_json(folder / "model.safetensors.index.json")
        named = sorted({str(name) for name in index["weight_map"].values()})
        missing = [name for name in named if not (folder / name).is_file()]
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"its index of weights cannot be read: {error}"
    return f"{missing[0]} is missing ({len(missing)} of {len(named)} files)" if missing else ""


def _read_hub(source: str) -> ModelFiles:
    """Look at the files of a Hugging Face id, downloaded or not."""
    try:
        model = HubModel.parse(source)
        held = model.held()
        if held is not None:
            return read_gguf(source, held) if model.file else read_folder(source, held)
        siblings = model.ask(HUB_ANSWER_S, files_metadata=True).siblings or ()
    except ModuleNotFoundError:
        return ModelFiles(source=source, hub_error="huggingface_hub is not installed")
    except HubRefusal as refusal:
        return ModelFiles(source=source, hub_error=refusal.reason)
    except UsageError as error:
        return ModelFiles(source=source, problem=str(error))
    ends = part_names(model.file) if model.file else (".safetensors",)
    sizes = [file.size or 0 for file in siblings if file.rfilename.endswith(ends)]
    return ModelFiles(source=source, remote_bytes=sum(sizes))


def judge_model(model: ModelFiles, *, is_verifier: bool) -> Finding:
    """Judge whether a model's files can be served as they are."""
    what = f"model {model.source}"
    other = "Give a folder, zoo:NAME or a Hugging Face id with --model; `cosine-node zoo` lists the embedded ones."
    again = f"Fetch {model.source} again, or name another model with --model."
    if model.problem:
        return failure(what, model.problem, other)
    if model.hub_error:
        fix = f"If the machine is meant to be online, look at its network; else check the name. {other}"
        return warning(what, f"it is not on this machine, and the hub does not tell of it: {model.hub_error}", fix)
    if model.folder is None:
        if not model.remote_bytes:
            return failure(what, "the hub has no safetensors of it", other)
        return fine(what, f"it is downloaded at the first start, {_gib(model.remote_bytes)}")
    if model.damage:
        return failure(what, f"in {model.folder}: {model.damage}", again)
    if not model.weight_bytes:
        kinds = "only weights that are not safetensors" if model.foreign_weights else "no weights"
        fix = (
            "Name a GGUF file by its own path, save others with `model.save_pretrained(FOLDER)`, which writes "
            "safetensors, or fetch it again."
        )
        return failure(what, f"{model.folder} has {kinds}", fix)
    if is_verifier and not model.tokenizer_digest:
        return failure(what, f"{model.folder} has no tokenizer", again)
    if is_verifier and model.generation_problem:
        return failure(what, model.generation_problem, again)
    return fine(what, f"{model.parameters / 1e6:.1f} million parameters, {_gib(model.weight_bytes)} on disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """The memory that a served model takes: its weights, its KV cache, and on a CPU Python with its libraries."""

    weight_bytes: int
    pool_bytes: int
    pool_tokens: int
    base_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.pool_bytes + self.base_bytes


def estimate_memory(
    model: ModelFiles,
    *,
    dtype: str,
    quantize: str | None,
    on_cpu: bool,
    base_bytes: int,
    free_bytes: int,
    pool_size: PoolSize,
    engine: EngineFacts,
) -> ModelMemory | None:
    """The memory that a model would take; None where its files do not tell.

    `dtype` is as of `join`: auto means float32 on a CPU and the stored one elsewhere; or it is `AS_STORED`. Of
    `base_bytes` and `free_bytes` 0 is for what is not known. Raises `UsageError` if too little is free for a KV
    cache.
    """
    if not model.is_usable or not model.parameters:
        return None
    stored_bytes = model.weight_bytes / model.parameters
    element_bytes = DTYPE_BYTES.get(dtype, 4 if on_cpu and dtype != AS_STORED else stored_bytes)
    if quantize == "stored":
        element_bytes = stored_bytes
    weight_bytes = round(model.parameters * QUANTISED_BYTES.get(quantize or "", element_bytes))
    if quantize is None and engine.half_bytes:
        weight_bytes = engine.half_bytes
    pool = PoolTokens(tokens=0)
    if engine.token.total > 0 and engine.context_tokens > 0:
        pool = pool_size.tokens(
            engine.token,
            context_tokens=engine.context_tokens,
            free_bytes=max(0, free_bytes - base_bytes - weight_bytes) if free_bytes else None,
            on_card=not on_cpu,
        )
    return ModelMemory(
        weight_bytes=weight_bytes,
        pool_bytes=pool.bytes_of(engine.token),
        pool_tokens=pool.tokens,
        base_bytes=base_bytes,
    )


def judge_memory(source: str, memory: ModelMemory | None, free_bytes: int, *, where: str) -> Finding:
    """Judge whether a model fits into the free memory of `where`; None and 0 stand for what is not known."""
    what = f"memory for {source}"
    if memory is None:
        return skipped(what, "the model's size is not known")
    if not free_bytes:
        return skipped(what, f"{where} does not tell its memory")
    parts = [f"{_gib(memory.weight_bytes)} of weights"]
    if memory.pool_tokens:
        parts.append(f"{_gib(memory.pool_bytes)} of KV cache for {memory.pool_tokens} tokens")
    if memory.base_bytes:
        parts.append(f"{_gib(memory.base_bytes)} of Python and libraries")
    needed = f"it takes about {_gib(memory.total_bytes)} of {_gib(free_bytes)} free on {where}"
    found = f"{needed}: {', '.join(parts)}"
    fix = "Choose a smaller --model, --dtype bfloat16 or --quantize int8, less --kv-memory, or free memory."
    if memory.total_bytes > free_bytes:
        return failure(what, found, fix)
    # The KV cache takes what there is; the rest must leave room for activations and other programs.
    if memory.total_bytes - memory.pool_bytes > 0.85 * free_bytes:
        return warning(what, f"{found}; a tight fit", fix)
    return fine(what, found)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"


def look_at_llama(model: ModelFiles, options: EngineChoice, *, base_bytes: int) -> Sequence[Finding]:
    """Judge a model that llama.cpp is to run on this machine; nothing to judge for others. Reads no weights.

    `base_bytes` is what Python and its libraries take, 0 if not known.
    """
    try:
        resolved = zoo.resolve(model.source)
    except UsageError:
        return []
    if options.kind_for(resolved) is not EngineKind.LLAMA:
        return []
    what = f"llama.cpp for {model.source}"
    # They need numpy, which a client has not.
    from cosine_node.engine.llama.library import PACKAGE, llama_library
    from cosine_node.engine.llama.loading import check_loads, find_device
    from cosine_node.engine.llama.model import token_bytes_of
    from cosine_node.gguf.file import GgufFile

    try:
        check_engine_options(options, resolved)
        if isinstance(resolved, Path) and model.is_usable:
            check_loads(resolved)
    except UsageError as error:
        return [failure(what, str(error), "Install what it names, leave the option out, or name another file.")]
    library = llama_library()
    device = find_device(library, options.device)
    free_bytes = (free_memory_bytes() or 0) if device is None else library.free_bytes(device)
    here = fine(what, f"the package {PACKAGE} has it, with the devices {', '.join(('cpu', *library.devices()))}")
    try:
        facts = EngineFacts()
        if isinstance(resolved, Path) and model.is_usable:
            file = GgufFile.open(resolved)
            facts = EngineFacts(token=TokenBytes(token_bytes_of(file)), context_tokens=file.context_tokens)
        memory = estimate_memory(
            model,
            dtype=AS_STORED,
            quantize=None,
            on_cpu=device is None,
            base_bytes=base_bytes if device is None else 0,
            free_bytes=free_bytes,
            pool_size=options.pool_size,
            engine=facts,
        )
    except UsageError as error:
        fix = "Choose a smaller --model or one in fewer bits, or free memory."
        return [here, failure(f"memory for {model.source}", str(error), fix)]
    where = "this machine" if device is None else options.device
    return [here, judge_memory(model.source, memory, free_bytes, where=where)]
