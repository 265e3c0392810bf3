"""`cosine-node draft`, `verify`, `stage` and `head`: `join` with the options of one role alone."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Annotated, Any, Final

import typer

from cosine_node.cli.join import join
from cosine_protocol.records import Role

_FLAGS: Final[Mapping[str, Parameter]] = signature(join).parameters
_OF_A_DRAFTER: Final = frozenset({"expertise", "learn", "learn_memory"})
_OF_A_VERIFIER: Final = frozenset({"draft_model", "max_coordinated", "share_prefixes", "share_weights"})
_OF_A_STAGE: Final = frozenset({"layers", "memory"})
_OF_A_HEAD: Final = frozenset({"over_stages", "warm_spare"})
_OF_AN_ENGINE: Final = frozenset(
    {"engine", "quantize", "kv_memory", "deterministic"} | {"vllm_python", "tensor_parallel", "pipeline_parallel"}
)
"""Options of an engine that holds a whole model."""
_LINK: Final = Annotated[
    str | None, typer.Argument(metavar="[LINK]", help="Invitation, or the address of a node of the network.")
]


def _verb(name: str, role: Role, text: str, *, without: frozenset[str], **fixed: Any) -> Callable[..., None]:
    """Return a command that is `join` with this role, without the options of other roles."""
    fixed["role"] = str(role)
    unset = {flag: _FLAGS[flag].default for flag in without - fixed.keys()}
    shown = [flag for flag in _FLAGS.values() if flag.name not in without | fixed.keys()]

    def run(link: str | None, **given: Any) -> None:
        if link is not None:
            given["initial_peers"] = [link, *(given["initial_peers"] or ())]
        join(**unset, **fixed, **given)

    run.__name__, run.__doc__ = name, text
    first = Parameter("link", Parameter.KEYWORD_ONLY, default=None, annotation=_LINK)
    # Typer reads both.
    vars(run)["__signature__"] = signature(run).replace(parameters=[first, *shown])
    run.__annotations__ = {flag.name: flag.annotation for flag in (first, *shown)}
    return run


draft = _verb(
    "draft",
    Role.DRAFTER,
    "Draft for the verifiers of a swarm until interrupted: guess the next tokens of their target.",
    without=_OF_A_VERIFIER | _OF_A_STAGE | _OF_A_HEAD,
)
verify = _verb(
    "verify",
    Role.VERIFIER,
    "Hold a target and generate with it for clients until interrupted.",
    without=_OF_A_DRAFTER | _OF_A_STAGE | _OF_A_HEAD,
)
stage = _verb(
    "stage",
    Role.STAGE,
    "Hold some layers of a target that is too large for one machine, until interrupted.",
    without=_OF_A_DRAFTER | _OF_A_VERIFIER | _OF_A_HEAD | (_OF_AN_ENGINE - {"quantize"}),
)
head = _verb(
    "head",
    Role.VERIFIER,
    "Generate for clients with a target whose layers stages hold, until interrupted.",
    without=_OF_A_DRAFTER | _OF_A_STAGE | _OF_AN_ENGINE | {"dtype"},
    over_stages=True,
)
