"""Loads a model: engine, cost curve, and content digest."""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cosine_engine import zoo
from cosine_engine.base import Engine
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.curve import PROMPT_TOKENS, CostCurve, measure_curve
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.loading_stage import stages_told
from cosine_engine.models.engine_kind import NGRAM, EngineChoice, check_engine_options, has_files, load_with
from cosine_engine.models.hub import HubModel
from cosine_engine.models.model_sizes import DraftedTokens, ModelSizes
from cosine_engine.models.tokenizer_conversion import convert_tokenizer
from cosine_engine.openai import SCHEME
from cosine_engine.openai.engine import ServerEngine
from cosine_engine.openai.server import TextServer
from cosine_engine.paged import PagedEngine
from cosine_engine.retokenized import RetokenizedEngine
from cosine_engine.text_alignment import PlainTokens, typical_own_per_target
from cosine_engine.vocabulary import DraftVocabulary, KnownTokens
from cosine_p2p.request.generation_config import apply_defaults, read_eos, read_generation_config
from cosine_p2p.request.options import TEXT_DEFAULTS
from cosine_p2p.text.target import read_target_facts
from cosine_p2p.text.tokenizer import TextTokenizer, load_tokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_protocol.numerics import library_of, told_numerics, told_repetition
from cosine_protocol.records import GenerationDefaults, Role, TargetFacts
from cosine_terminal.events import Emit

if TYPE_CHECKING:
    from cosine_engine.models.unloading import ModelMemory

LOG = logging.getLogger(__name__)
MEASURE_S: Final = 4.0
"""Duration of the measurement at each start; later passes correct the result (`PassSpeed`)."""
WARM_UP_S: Final = 0.3
"""Duration for an emulated device, whose speed is given: only the slow first pass matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model to load. `target` is a drafter's target, or a verifier's public name."""

    model: str
    target: str
    engine: EngineChoice = field(default_factory=EngineChoice)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """The names in a record. `folder` has the target's files."""

    model_name: str
    target_name: str
    facts: TargetFacts
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A loaded model and the names in its record. `folder` has a drafter's own weights.

    With a `memory` the engine is one whose model can be unloaded.
    """

    engine: Engine
    curve: CostCurve
    names: ModelNames
    folder: Path | None = None
    memory: "ModelMemory | None" = None


def load_served(
    source: ModelSource, role: Role, emit: Emit, *, measure_s: float = MEASURE_S, folder: Path | None = None
) -> ServedModel:
    """Fetch, load and measure a model. Blocks; raises `UsageError`.

    `folder` is that of a model that is already fetched.
    """
    server = TextServer.find(source.model) if source.model.startswith(SCHEME) else None
    if has_files(source.model):
        check_engine_options(source.engine, zoo.resolve(source.model))
    has_own_folder = role is Role.DRAFTER and has_files(source.model)
    if folder is None:
        folder = fetch(source.model if has_files(source.model) else source.target, emit)
    target_folder = fetch(source.target, emit) if has_own_folder else folder
    generation_defaults = read_generation_config(target_folder)
    # Refuse files that clients cannot read before reading the weights.
    read_eos(target_folder)
    files = TokenizerFiles.read(target_folder)
    if files is None:
        raise UsageError(f"The target {source.target!r} has no tokenizer files; serve a model that has them.")
    TextTokenizer(files.files)
    if role is Role.VERIFIER and generation_defaults is not None:
        emit("generation_config", _config_fields(generation_defaults))
    emit("loading", {"model": source.model})
    drafted = _drafted(folder, target_folder) if has_own_folder else None
    with stages_told(lambda stage: emit(stage, {"model": source.model})):
        engine = (
            load_weights(source, folder, target_folder, drafted) if server is None else of_server(server, folder)
        )
    has_reduced_vocabulary = has_own_folder and folder != target_folder and drafted is None
    has_targets_ids = not has_reduced_vocabulary and (drafted is None or drafted.are_the_targets)
    if isinstance(engine, PagedEngine) and has_targets_ids:
        # A verifier must wait for its constraint, and a drafter goes on without.
        engine.grammars = Grammars.of(target_folder, waits=role is Role.VERIFIER)
    if has_files(source.model):
        promise = f": {told_repetition(engine.numerics)}" if role is Role.VERIFIER else ""
        said = f"{library_of(engine.numerics)}, {told_numerics(engine.numerics)}{promise}"
        emit("computes", {"model": source.model, "said": said})
        sizes = {"kv_tokens": engine.free_tokens, "context_tokens": engine.context_tokens}
        emit("loaded", {"model": source.model, **sizes})
    emit("measuring", {"model": source.model})
    prompt_tokens = PROMPT_TOKENS if role is Role.VERIFIER else ()
    if isinstance(engine, ServerEngine):
        curve = CostCurve(((1, engine.server.token_s(engine.target)),))
    else:
        curve = measure_curve(engine, clock=time.perf_counter, prompt_tokens=prompt_tokens, budget_s=measure_s)
    if drafted is not None and not drafted.are_the_targets:
        LOG.warning("%s has another tokenizer than %s: its drafts are matched as text", source.model, source.target)
        engine, curve = _retokenized(engine, curve, folder, target_folder)
    # Addresses of this machine's network stay private.
    names = read_names(source.model if server is None else server.model, source.target, target_folder)
    return ServedModel(engine=engine, curve=curve, names=names, folder=folder if has_own_folder else None)


def read_names(model: str, target: str, folder: Path) -> ModelNames:
    """The names of a model and of its target, whose folder is given. Raises `UsageError` without a tokenizer."""
    facts = read_target_facts(folder)
    if facts is None:
        raise UsageError(f"The target {target!r} has no tokenizer files; serve a model that has them.")
    # Paths of this machine stay private.
    path = Path(model).expanduser()
    return ModelNames(
        model_name=path.resolve().name if path.exists() else model,
        target_name=facts.digest().hex() if Path(target).expanduser().exists() else target,
        facts=facts,
        folder=folder,
    )


def _config_fields(published: GenerationDefaults) -> dict[str, object]:
    """The fields of the event about the effects of a model's generation config."""
    applied = apply_defaults(published, asked={}, otherwise=TEXT_DEFAULTS)
    given, lost = ", ".join(applied.told_options()), ", ".join(published.not_honoured)
    said = [
        given and f"The model's generation config sets the default {given}.",
        lost and f"A swarm does not support its {lost}: texts differ from those of generate() in transformers.",
    ]
    return {
        "options": dict(applied.options),
        "not_honoured": list(published.not_honoured),
        "said": " ".join(filter(None, said)) or "The model's generation config has no effect on texts.",
    }


def fetch(source: str, emit: Emit) -> Path:
    """Like `fetch_folder`, with an event before a download."""
    if not isinstance(zoo.resolve(source), Path):
        emit("fetching", {"model": source})
    return fetch_folder(source)


def fetch_folder(source: str) -> Path:
    """The local folder of a model, which is downloaded from the Hugging Face hub if necessary.

    A GGUF file is unfolded, and a tokenizer that clients cannot read is converted. Raises `UsageError`.
    """
    resolved = zoo.resolve(source)
    return readable(HubModel.parse(resolved).fetch() if isinstance(resolved, str) else resolved)


def readable(path: Path) -> Path:
    """Like `fetch_folder`, for the path of a folder or GGUF file."""
    if path.is_file():
        return unfold(path, is_served=True)
    convert_tokenizer(path)
    return path


def of_server(server: TextServer, folder: Path) -> ServerEngine:
    """The engine of a server for the target in a folder. Raises `UsageError`."""
    sizes, tokenizer = ModelSizes.read(folder), load_tokenizer(folder).library
    return ServerEngine(server, tokenizer, vocab_tokens=sizes.vocab_tokens, context_tokens=sizes.context_tokens)


def load_weights(
    source: ModelSource, folder: Path, target_folder: Path, drafted: DraftedTokens | None = None
) -> Engine:
    """Load the engine of the model in a folder. `NGRAM` has the sizes of the target. Raises `UsageError`.

    `drafted` are the tokens of a drafter, if they are already known.
    """
    if source.model == NGRAM:
        from cosine_engine.ngram import NgramEngine

        sizes = ModelSizes.read(folder)
        return NgramEngine(vocab_tokens=sizes.vocab_tokens, context_tokens=sizes.context_tokens)
    resolved = zoo.resolve(source.model)
    vocabulary = None if folder == target_folder else DraftVocabulary.read(folder)
    if vocabulary is None:
        drafted = drafted or _drafted(folder, target_folder)
        known = KnownTokens(count=None if drafted is None else drafted.count)
    else:
        known = KnownTokens(vocabulary=vocabulary, target_tokens=ModelSizes.read(target_folder).vocab_tokens)
    return load_with(source.engine, folder, resolved, known=known)


def _drafted(folder: Path, target_folder: Path) -> DraftedTokens | None:
    """The tokens of a drafter. None for the target, and for a drafter with a reduced vocabulary."""
    if folder == target_folder or DraftVocabulary.read(folder) is not None:
        return None
    return DraftedTokens.of(folder, target_folder)


def _retokenized(engine: Engine, curve: CostCurve, folder: Path, target_folder: Path) -> tuple[Engine, CostCurve]:
    """Adapt a drafter with other tokens to those of the target, and its cost curve too."""
    own_tokens, target_tokens = (PlainTokens(load_tokenizer(place).library) for place in (folder, target_folder))
    retokenized = RetokenizedEngine(
        engine,
        own=own_tokens,
        target=target_tokens,
        vocab_tokens=ModelSizes.read(target_folder).vocab_tokens,
        lead=own_tokens.lead,
        ends=own_tokens.ends,
    )
    passes = typical_own_per_target(own_tokens, target_tokens)
    points = tuple((tokens, seconds * passes) for tokens, seconds in curve.points)
    return retokenized, CostCurve(points)
