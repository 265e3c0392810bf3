"""Options of `join` for a model in parts: the layers of a stage, and a verifier without weights."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from cosine_node.cli.options import MODEL_PANEL
from cosine_node.engine.engine_kind import EngineChoice, EngineKind
from cosine_node.pool_size import AUTO
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

if TYPE_CHECKING:
    from cosine_node.engine.stage_draft import StageSource
    from cosine_node.model import ModelSource

Layers = Annotated[
    str | None,
    typer.Option(
        metavar="FIRST:END",
        envvar="COSINE_LAYERS",
        help="Layers that a stage holds, for example 8:16, the end not included; auto: those that the swarm lacks.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        envvar="COSINE_MEMORY",
        help="Memory of a stage's weights and KV cache: 6GiB, or a part of what is free such as 0.5.",
        rich_help_panel=MODEL_PANEL,
    ),
]
OverStages = Annotated[
    bool,
    typer.Option(
        "--over-stages",
        metavar="",
        envvar="COSINE_OVER_STAGES",
        help="Hold no weights: a verifier's passes then run over stages of the swarm, which hold the layers.",
        rich_help_panel=MODEL_PANEL,
    ),
]


def check_parts(
    role: Role,
    engine: EngineChoice,
    layers: str | None,
    memory: str | None,
    *,
    is_head: bool,
    given: Mapping[str, bool],
) -> None:
    """Raise `UsageError` for options that do not go with a model in parts, or go with nothing else.

    `given` tells of further options that only whole models have whether they were given.
    """
    if is_head and role is not Role.VERIFIER:
        raise UsageError("--over-stages is for verifiers: their passes run over the stages of others.")
    if role is not Role.STAGE and (layers is not None or memory is not None):
        raise UsageError("--layers and --memory are for --role stage; a KV cache has --kv-memory.")
    if role is not Role.STAGE and not is_head:
        return
    unfit = {
        "--engine llama": engine.kind is EngineKind.LLAMA,
        "--quantize": engine.quantize is not None,
        "--deterministic": engine.is_deterministic,
        "--dtype": is_head and engine.dtype != AUTO,
    }
    for option, is_given in (unfit | dict(given)).items():
        if is_given:
            raise UsageError(f"{option} does not go with a model in parts, whose layers stages hold.")


def part_of(source: "ModelSource", layers: str | None, memory: str | None, *, requests: int) -> "StageSource":
    """What a stage is to load; `requests` are those of one head."""
    from cosine_node.engine.stage_draft import StageSource

    return StageSource(
        model=source.model,
        target=source.target,
        engine=source.engine,
        layers=layers or AUTO,
        memory=memory or AUTO,
        requests=requests,
    )
