"""A served model: its engine, the cost of its passes, and the names in its record."""

import logging
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cosine_engine import zoo
from cosine_engine.base import Engine
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.curve import PROMPT_TOKENS, CostCurve, measure_curve
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.load_options import LoadOptions
from cosine_engine.models.engine_kind import has_files
from cosine_engine.models.loading import check_options, load, open_model
from cosine_engine.models.model_sizes import DraftedTokens, ModelSizes
from cosine_engine.openai import SCHEME
from cosine_engine.openai.engine import ServerEngine
from cosine_engine.openai.server import TextServer
from cosine_engine.other_tokens.retokenized import RetokenizedEngine
from cosine_engine.other_tokens.text_alignment import PlainTokens, typical_own_per_target
from cosine_p2p.request.generation_config import read_eos, read_generation_config
from cosine_p2p.request.model_defaults import apply_defaults
from cosine_p2p.request.options import TEXT_DEFAULTS
from cosine_p2p.text.target import read_target_facts
from cosine_p2p.text.tokenizer import TextTokenizer, load_tokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_protocol.numerics import library_of, numerics_text, repetition_text
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
    engine: LoadOptions = field(default_factory=LoadOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """The names in a record. `folder` has the target's files."""

    model_name: str
    target_name: str
    facts: TargetFacts
    folder: Path

    @classmethod
    def read(cls, model: str, target: str, folder: Path) -> "ModelNames":
        """The names of a model, and of its target in a folder. Raises `UsageError` without a tokenizer."""
        facts = read_target_facts(folder)
        if facts is None:
            raise UsageError(f"The target {target!r} has no tokenizer files; serve a model that has them.")
        # Paths of this machine stay private.
        path = Path(model).expanduser()
        return cls(
            model_name=path.resolve().name if path.exists() else model,
            target_name=facts.digest().hex() if Path(target).expanduser().exists() else target,
            facts=facts,
            folder=folder,
        )


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
    source: ModelSource,
    role: Role,
    emit: Emit,
    *,
    measure_s: float = MEASURE_S,
    files: ModelFiles | None = None,
    grammars: Grammars | None = None,
) -> ServedModel:
    """Fetch, load and measure a model. Blocks; raises `UsageError`.

    `files` are those of a model that is open already, `grammars` the constraints of others with its target.
    """
    server = TextServer.find(source.model) if source.model.startswith(SCHEME) else None
    if has_files(source.model):
        check_options(source.engine, zoo.resolve(source.model))
    has_own_files = role is Role.DRAFTER and has_files(source.model)
    if files is None:
        files = open_model(source.model if has_files(source.model) else source.target, emit)
    target = open_model(source.target, emit) if has_own_files else files
    _check_target(source, role, target.folder, emit)
    emit("loading", {"model": source.model})
    drafted = DraftedTokens.of(files.folder, target.folder) if has_own_files else DraftedTokens()
    if drafted.are_the_targets and drafted.known.vocabulary is None:
        # A verifier must wait for its constraint; a drafter continues without it.
        grammars = grammars or Grammars.of(target.folder, waits=role is Role.VERIFIER)
    else:
        grammars = None
    how = replace(
        source.engine,
        known=drafted.known,
        grammars=grammars,
        is_served=True,
        tell=lambda stage: emit(stage, {"model": source.model}),
    )
    engine = load(files, how) if has_files(source.model) else _without_files(server, target.folder, how)
    if has_files(source.model):
        promise = f": {repetition_text(engine.numerics)}" if role is Role.VERIFIER else ""
        said = f"{library_of(engine.numerics)}, {numerics_text(engine.numerics)}{promise}"
        emit("computes", {"model": source.model, "said": said})
        sizes = {"kv_tokens": engine.free_tokens, "context_tokens": engine.context_tokens}
        emit("loaded", {"model": source.model, **sizes})
    emit("measuring", {"model": source.model})
    prompt_tokens = PROMPT_TOKENS if role is Role.VERIFIER else ()
    if isinstance(engine, ServerEngine):
        curve = CostCurve(((1, engine.server.token_s(engine.target)),))
    else:
        curve = measure_curve(engine, clock=time.perf_counter, prompt_tokens=prompt_tokens, budget_s=measure_s)
    if not drafted.are_the_targets:
        LOG.warning("%s has another tokenizer than %s: its drafts are matched as text", source.model, source.target)
        engine, curve = _retokenized(engine, curve, files.folder, target.folder)
    # Addresses of this machine's network stay private.
    names = ModelNames.read(source.model if server is None else server.model, source.target, target.folder)
    return ServedModel(engine=engine, curve=curve, names=names, folder=files.folder if has_own_files else None)


def _check_target(source: ModelSource, role: Role, folder: Path, emit: Emit) -> None:
    """Refuse files that clients cannot read, before the weights are read. Raises `UsageError`."""
    generation_defaults = read_generation_config(folder)
    read_eos(folder)
    files = TokenizerFiles.read(folder)
    if files is None:
        raise UsageError(f"The target {source.target!r} has no tokenizer files; serve a model that has them.")
    TextTokenizer(files.files)
    if role is Role.VERIFIER and generation_defaults is not None:
        emit("generation_config", _config_fields(generation_defaults))


def _config_fields(published: GenerationDefaults) -> dict[str, object]:
    """The fields of the event about the effects of a model's generation config."""
    applied = apply_defaults(published, asked={}, otherwise=TEXT_DEFAULTS)
    given, lost = ", ".join(applied.options_text()), ", ".join(published.not_honoured)
    said = [
        given and f"The model's generation config sets the default {given}.",
        lost and f"A swarm does not support its {lost}: texts differ from those of generate() in transformers.",
    ]
    return {
        "options": dict(applied.options),
        "not_honoured": list(published.not_honoured),
        "said": " ".join(filter(None, said)) or "The model's generation config has no effect on texts.",
    }


def _without_files(server: TextServer | None, target: Path, how: LoadOptions) -> Engine:
    """The engine of a server, or without one of `NGRAM`, for the target in a folder. Raises `UsageError`."""
    sizes = ModelSizes.read(target)
    options: dict[str, Any] = {
        "vocab_tokens": sizes.vocab_tokens,
        "context_tokens": sizes.context_tokens,
        "grammars": how.grammars,
    }
    if server is not None:
        return ServerEngine(server, load_tokenizer(target).library, **options)
    from cosine_engine.ngram import NgramEngine

    return NgramEngine(**options)


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
