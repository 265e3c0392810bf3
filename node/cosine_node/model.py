"""From what a volunteer names to something a node can serve: the engine, its curve, and who it is by content."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from cosine_node import zoo
from cosine_node.engine.base import Engine
from cosine_node.engine.curve import CostCurve, measure_curve
from cosine_node.engine.retokenized import RetokenizedEngine
from cosine_node.engine.text_alignment import PlainTokens, typical_own_per_target
from cosine_p2p.target import identify_target
from cosine_p2p.tokenizer_files import NAMES, TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

LOG = logging.getLogger(__name__)
NGRAM: Final = "ngram"
POOL_TOKENS: Final = 32_768

Emit = Callable[[str, dict[str, object]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """What to load and how. `target` is whom a drafter drafts for, in its tokens, or a verifier's public name."""

    model: str
    target: str
    device: str
    dtype: str
    threads: int | None
    quantize: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A loaded model and everything its record says."""

    engine: Engine
    curve: CostCurve
    model_name: str
    target_name: str
    names: tuple[str, ...]
    """Names under which the record is announced."""
    target_digest: bytes
    tokenizer_digest: bytes
    tokenizer_folder: Path
    eos: tuple[int, ...]


def load_served(source: ModelSource, role: Role, emit: Emit) -> ServedModel:
    """Fetch, load and measure a model. Blocks; raises `UsageError` with one sentence for the volunteer."""
    if source.model != NGRAM:
        _check_options(source)
    target_folder = _fetch(source.model if role is Role.VERIFIER else source.target, emit)
    if role is Role.DRAFTER and source.model != NGRAM:
        _fetch(source.model, emit)
    emit("loading", {"model": source.model})
    engine = _load_engine(source, target_folder)
    emit("measuring", {"model": source.model})
    curve = measure_curve(engine, clock=time.perf_counter)
    files = TokenizerFiles.read(target_folder)
    if files is None:
        raise UsageError(f"The target {source.target!r} has no tokenizer files; serve a model that has them.")
    if role is Role.DRAFTER and source.model != NGRAM:
        own = _other_tokenizer(fetch_folder(source.model), files)
        if own is not None:
            LOG.warning(
                "%s has another tokenizer than %s: its drafts are matched as text", source.model, source.target
            )
            engine, curve = _retokenized(engine, curve, own, files, target_folder)
    identity = identify_target(target_folder, name=source.target)
    digest = identity.target_digest
    name = digest.hex() if Path(source.target).expanduser().is_dir() else source.target
    return ServedModel(
        engine=engine,
        curve=curve,
        model_name=_public_name(source.model),
        target_name=name,
        names=tuple(dict.fromkeys((name, digest.hex()))),
        target_digest=digest,
        tokenizer_digest=files.digest,
        tokenizer_folder=target_folder,
        eos=read_eos(target_folder),
    )


def _check_options(source: ModelSource) -> None:
    from cosine_node.engine.loading import check_options

    check_options(dtype=source.dtype, device=source.device, quantize=source.quantize)


def _fetch(source: str, emit: Emit) -> Path:
    if not isinstance(zoo.resolve(source), Path):
        emit("fetching", {"model": source})
    return fetch_folder(source)


def fetch_folder(source: str) -> Path:
    """The local folder of `zoo:NAME`, a folder, or a Hugging Face id, which is downloaded if need be."""
    place = zoo.resolve(source)
    return place if isinstance(place, Path) else _download(place)


def _download(model_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", *NAMES]
    try:
        return Path(snapshot_download(model_id, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(
            f"No model {model_id!r} was found: it is no folder here and no zoo:NAME, and the Hugging Face hub "
            f"answered: {reason}"
        ) from None


def _load_engine(source: ModelSource, target_folder: Path) -> Engine:
    if source.model == NGRAM:
        return _ngram_engine(target_folder)
    from cosine_node.engine.loading import load_engine
    from cosine_node.engine.threads import limit_threads

    folder = fetch_folder(source.model)
    limit_threads(source.threads, folder)
    return load_engine(
        str(folder), dtype=source.dtype, device=source.device, quantize=source.quantize, pool_tokens=POOL_TOKENS
    )


def _ngram_engine(target_folder: Path) -> Engine:
    from cosine_node.engine.ngram import NgramEngine

    vocab_tokens, context_tokens = _target_sizes(target_folder)
    return NgramEngine(vocab_tokens=vocab_tokens, context_tokens=context_tokens)


def _target_sizes(target_folder: Path) -> tuple[int, int]:
    """Tokens of a target's vocabulary and context."""
    try:
        config = json.loads((target_folder / "config.json").read_text("utf-8"))
        return config["vocab_size"], config.get("max_position_embeddings", 4096)
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{target_folder} is no target to draft for: no config.json names its vocabulary."
        ) from None


def _other_tokenizer(folder: Path, target: TokenizerFiles) -> TokenizerFiles | None:
    """A drafter's tokenizer, if its token ids do not mean what the target's mean.

    A folder without a tokenizer uses the target's.
    """
    own = TokenizerFiles.read(folder)
    if own is None or own.digest == target.digest:
        return None
    return own if _tokenizer(own).get_vocab() != _tokenizer(target).get_vocab() else None


def _retokenized(
    engine: Engine, curve: CostCurve, own: TokenizerFiles, target: TokenizerFiles, target_folder: Path
) -> tuple[Engine, CostCurve]:
    """A drafter of other tokens, in the target's, and what a pass costs by those."""
    own_tokens, target_tokens = PlainTokens(_tokenizer(own)), PlainTokens(_tokenizer(target))
    retokenized = RetokenizedEngine(
        engine,
        own=own_tokens,
        target=target_tokens,
        vocab_tokens=_target_sizes(target_folder)[0],
        lead=own_tokens.lead,
        ends=own_tokens.ends,
    )
    passes = typical_own_per_target(own_tokens, target_tokens)
    points = tuple((tokens, seconds * passes) for tokens, seconds in curve.points)
    return retokenized, CostCurve(points)


def _tokenizer(files: TokenizerFiles) -> Tokenizer:
    data = files.files.get("tokenizer.json")
    if data is None:
        raise UsageError("A drafter and its target need a tokenizer.json to be compared.")
    try:
        return Tokenizer.from_buffer(data)
    except ValueError as error:
        raise UsageError(f"A tokenizer.json cannot be read: {error}.") from None


def read_eos(folder: Path) -> tuple[int, ...]:
    """The end-of-sequence ids a model generates by: of its generation config, else of its config.

    Raises `UsageError` if one of them cannot be read.
    """
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        try:
            ids = json.loads(file.read_text("utf-8")).get("eos_token_id") if file.is_file() else None
            if ids is not None:
                return tuple(ids) if isinstance(ids, list) else (int(ids),)
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise UsageError(f"{file} cannot be read ({error}); fetch the model again.") from None
    return ()


def _public_name(source: str) -> str:
    """How a model is called in records: never by a path of the volunteer's machine."""
    path = Path(source).expanduser()
    return path.resolve().name if path.is_dir() else source
