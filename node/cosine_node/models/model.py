"""Loads the model that a volunteer names: the engine, its cost curve, and its identity by content."""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cosine_node import zoo
from cosine_node.engine.base import Engine
from cosine_node.engine.constraints.grammars import Grammars
from cosine_node.engine.curve import PROMPT_TOKENS, CostCurve, measure_curve
from cosine_node.engine.loading_stage import stages_told
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.retokenized import RetokenizedEngine
from cosine_node.engine.text_alignment import PlainTokens, typical_own_per_target
from cosine_node.engine.vocabulary import DraftVocabulary, ReducedVocabularyEngine
from cosine_node.gguf.unfolding import unfold
from cosine_node.models.engine_kind import NGRAM, EngineChoice, check_engine_options, load_with
from cosine_node.models.hub import HubModel
from cosine_node.models.model_sizes import ModelSizes
from cosine_node.models.shared_tokens import DraftedTokens
from cosine_node.models.tokenizer_conversion import convert_tokenizer
from cosine_node.terminal.events import Emit
from cosine_p2p.request.generation_config import apply_defaults, read_eos, read_generation_config
from cosine_p2p.request.options import TEXT_DEFAULTS
from cosine_p2p.text.target import read_target_facts
from cosine_p2p.text.tokenizer import TextTokenizer, load_tokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_protocol.numerics import LLAMA, arithmetic_of, told_numerics, told_repetition
from cosine_protocol.records import GenerationDefaults, Role, TargetFacts

LOG = logging.getLogger(__name__)
MEASURE_S: Final = 4.0
"""A volunteer waits for it at every start, and real passes correct the result (`pass_speed`)."""
WARM_UP_S: Final = 0.3
"""The same for an emulated device, whose speed is given: a first pass is slower than all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model to load and how. `target` is the model a drafter drafts for, or a verifier's public name."""

    model: str
    target: str
    engine: EngineChoice = field(default_factory=EngineChoice)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """What a record says of a model and its target, whose files lie in `folder`."""

    model_name: str
    target_name: str
    facts: TargetFacts
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A loaded model and everything its record says."""

    engine: Engine
    curve: CostCurve
    names: ModelNames
    folder: Path | None = None
    """That of a drafter's own weights, if it has any."""


def load_served(
    source: ModelSource, role: Role, emit: Emit, *, measure_s: float = MEASURE_S, folder: Path | None = None
) -> ServedModel:
    """Fetch, load and measure a model, for about so long. Blocks; raises `UsageError` with one sentence.

    `folder` is the model's, where it was fetched before.
    """
    if source.model != NGRAM:
        check_engine_options(source.engine, zoo.resolve(source.model))
    has_own_folder = role is Role.DRAFTER and source.model != NGRAM
    if folder is None:
        folder = fetch(source.target if source.model == NGRAM else source.model, emit)
    target_folder = fetch(source.target, emit) if has_own_folder else folder
    generation_defaults = read_generation_config(target_folder)
    # What no client could read is not announced, and refused before the weights are read.
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
        engine = load_weights(source, folder, target_folder, drafted)
    if isinstance(engine, PagedEngine) and (drafted is None or drafted.are_the_targets):
        # A drafter must not keep its clients waiting; a verifier must not go on without a constraint.
        engine.grammars = Grammars.of(target_folder, waits=role is Role.VERIFIER)
    if source.model != NGRAM:
        emit("computes", {"model": source.model, "said": _told_engine(engine.numerics, role)})
        sizes = {"kv_tokens": engine.free_tokens, "context_tokens": engine.context_tokens}
        emit("loaded", {"model": source.model, **sizes})
    emit("measuring", {"model": source.model})
    prompt_tokens = PROMPT_TOKENS if role is Role.VERIFIER else ()
    curve = measure_curve(engine, clock=time.perf_counter, prompt_tokens=prompt_tokens, budget_s=measure_s)
    if drafted is not None and not drafted.are_the_targets:
        LOG.warning("%s has another tokenizer than %s: its drafts are matched as text", source.model, source.target)
        engine, curve = _retokenized(engine, curve, folder, target_folder)
    names = read_names(source.model, source.target, target_folder)
    return ServedModel(engine=engine, curve=curve, names=names, folder=folder if has_own_folder else None)


def _told_engine(numerics: str, role: Role) -> str:
    library = "llama.cpp" if arithmetic_of(numerics) == LLAMA else "PyTorch"
    promise = f": {told_repetition(numerics)}" if role is Role.VERIFIER else ""
    return f"{library}, {told_numerics(numerics)}{promise}"


def read_names(model: str, target: str, folder: Path) -> ModelNames:
    """The names of a model for the target in a folder. Raises `UsageError` where that has no tokenizer."""
    facts = read_target_facts(folder, name=target)
    if facts is None:
        raise UsageError(f"The target {target!r} has no tokenizer files; serve a model that has them.")
    # A model is never called by a path of the volunteer's machine.
    path = Path(model).expanduser()
    return ModelNames(
        model_name=path.resolve().name if path.exists() else model,
        target_name=facts.digest().hex() if Path(target).expanduser().exists() else target,
        facts=facts,
        folder=folder,
    )


def _config_fields(published: GenerationDefaults) -> dict[str, object]:
    """The fields of the event that tells a volunteer what a model's own generation config does to texts."""
    applied = apply_defaults(published, asked={}, otherwise=TEXT_DEFAULTS)
    given, lost = ", ".join(applied.told_options()), ", ".join(published.not_honoured)
    said = [
        given and f"Requests that say nothing else get the model's own {given}.",
        lost and f"Its {lost} cannot be honoured by a swarm: texts are not those of its own generate().",
    ]
    return {
        "options": dict(applied.options),
        "not_honoured": list(published.not_honoured),
        "said": " ".join(filter(None, said)) or "The model's own generation config changes no text.",
    }


def fetch(source: str, emit: Emit) -> Path:
    """`fetch_folder`, told first where it may take long."""
    if not isinstance(zoo.resolve(source), Path):
        emit("fetching", {"model": source})
    return fetch_folder(source)


def fetch_folder(source: str) -> Path:
    """The local folder of a model that `--model` may name; one on the Hugging Face hub is downloaded if need be.

    The folder of a GGUF file is the one it is unfolded to. A tokenizer that clients could not read is converted.
    Raises `UsageError`.
    """
    resolved = zoo.resolve(source)
    return readable(HubModel.parse(resolved).fetch() if isinstance(resolved, str) else resolved)


def readable(path: Path) -> Path:
    """The folder of a model that is here as a folder or GGUF file, as `fetch_folder` gives it."""
    if path.is_file():
        return unfold(path, is_served=True)
    convert_tokenizer(path)
    return path


def load_weights(
    source: ModelSource, folder: Path, target_folder: Path, drafted: DraftedTokens | None = None
) -> Engine:
    """The engine of the model in a folder, loaded as the source says; `NGRAM` has the target's sizes.

    `drafted` are the tokens that it may draft, where they are known already. Raises `UsageError`.
    """
    if source.model == NGRAM:
        from cosine_node.engine.ngram import NgramEngine

        sizes = ModelSizes.read(folder)
        return NgramEngine(vocab_tokens=sizes.vocab_tokens, context_tokens=sizes.context_tokens)
    resolved = zoo.resolve(source.model)
    vocabulary = None if folder == target_folder else DraftVocabulary.read(folder)
    if vocabulary is None:
        drafted = drafted or _drafted(folder, target_folder)
        known_tokens = None if drafted is None else drafted.count
        return load_with(source.engine, folder, resolved, known_tokens=known_tokens)
    engine = load_with(source.engine, folder, resolved, vocabulary)
    return ReducedVocabularyEngine(engine, vocabulary, vocab_tokens=ModelSizes.read(target_folder).vocab_tokens)


def _drafted(folder: Path, target_folder: Path) -> DraftedTokens | None:
    """The tokens of a drafter; None for one of a reduced vocabulary, which names them, and for the target."""
    if folder == target_folder or DraftVocabulary.read(folder) is not None:
        return None
    return DraftedTokens.of(folder, target_folder)


def _retokenized(engine: Engine, curve: CostCurve, folder: Path, target_folder: Path) -> tuple[Engine, CostCurve]:
    """A drafter of other tokens, in the target's, with the cost of a pass by those."""
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
