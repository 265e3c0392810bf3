"""Conversion of command-line options to those of the network and of each role. All functions raise `UsageError`."""

import logging
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from cosine_engine import zoo
from cosine_engine.load_options import EngineKind, LoadOptions, VllmOptions
from cosine_engine.models.engine_kind import has_files, kind_for
from cosine_engine.pool_size import AUTO, PoolSize, parse_pool_size
from cosine_node.cli.node_flags import NodeFlags
from cosine_node.passes.emulation import Emulation
from cosine_node.serving.guest import GuestRules, Hours, parse_pause
from cosine_node.serving.options import (
    DraftOptions,
    HeadOptions,
    NetworkOptions,
    RoleOptions,
    StageOptions,
    VerifyOptions,
)
from cosine_p2p.invitation import follow_invitations
from cosine_p2p.transport.config import DEFAULT_HOST_MADDRS
from cosine_protocol.errors import UsageError
from cosine_protocol.records import MAX_EXPERTISE, Role
from cosine_terminal.options import DEFAULT_TARGET, access_of, peers_of, several

if TYPE_CHECKING:
    from cosine_engine.models.served import ModelSource

LOG = logging.getLogger(__name__)
NO_DRAFT_MODEL: Final = "none"


def network_of(flags: NodeFlags, link: str | None = None) -> NetworkOptions:
    """The network of the nodes; `link` is another initial peer or an invitation."""
    access = access_of(flags.network, flags.swarm, flags.deny, lan=flags.lan)
    peers, access = follow_invitations(peers_of(link, flags.initial_peers), access)
    hours = None if flags.hours is None else Hours.parse(flags.hours)
    return NetworkOptions(
        access=access,
        identity_file=flags.identity or access.identity_file,
        initial_peers=peers,
        host_maddrs=several(flags.host_maddr) or DEFAULT_HOST_MADDRS,
        announce_maddrs=several(flags.announce_maddr),
        relays=several(flags.relay),
        metrics_port=flags.metrics_port,
        metrics_host=flags.metrics_host,
        guest=GuestRules(hours=hours, only_idle=flags.only_idle, on_mains=flags.on_mains),
    )


def drafters_of(flags: NodeFlags) -> tuple[DraftOptions, ...]:
    """A drafter for each model."""
    from cosine_engine.models.served import ModelSource

    engine, target = _engine_of(flags, Role.DRAFTER), flags.target
    if engine.is_deterministic:
        raise UsageError("--deterministic is for verifiers: drafts do not change the text.")
    models = several(flags.model) or (zoo.default_drafter(target),)
    sources = [ModelSource(model=name, target=target or zoo.default_target(name), engine=engine) for name in models]
    shared, unload_after_s = _shared(flags), _unload_after_s(flags, *sources)
    return tuple(
        DraftOptions(
            source=each, expertise=_expertise(flags.expertise, each.model), unload_after_s=unload_after_s, **shared
        )
        for each in sources
    )


def verifier_of(flags: NodeFlags) -> VerifyOptions:
    source = _target_of(flags, Role.VERIFIER)
    fields = _verifier_fields(flags, source, over_stages=False)
    return VerifyOptions(**fields, unload_after_s=_unload_after_s(flags, source))


def head_of(flags: NodeFlags) -> HeadOptions:
    source = _target_of(flags, Role.VERIFIER)
    engine = source.engine
    _refuse_for_parts(flags, engine, **{"--quantize": engine.quantize is not None, "--dtype": engine.dtype != AUTO})
    return HeadOptions(**_verifier_fields(flags, source, over_stages=True))


def stage_of(flags: NodeFlags) -> StageOptions:
    source = _target_of(flags, Role.STAGE)
    is_converted = source.engine.quantize is not None and source.engine.quantize.startswith("int")
    _refuse_for_parts(flags, source.engine, **{"--quantize": is_converted})
    # Half of the free memory is usual.
    memory = flags.memory or (AUTO if flags.share == 1.0 else f"{flags.share / 2:.3f}")
    layers, shares_weights = flags.layers or AUTO, flags.share_weights
    return StageOptions(
        source=source, layers=layers, memory=memory, shares_weights=shares_weights, **_shared(flags)
    )


def _shared(flags: NodeFlags) -> dict[str, Any]:
    """The fields of `RoleOptions` besides the source."""
    emulation = Emulation.parse(flags.emulate) if flags.emulate else None
    return {"max_requests": flags.max_requests, "emulation": emulation, "share": flags.share}


def _verifier_fields(flags: NodeFlags, source: "ModelSource", *, over_stages: bool) -> dict[str, Any]:
    """The fields that a verifier and a head have."""
    return _shared(flags) | {
        "source": source,
        "home": _home_of(flags, source, over_stages=over_stages),
        "max_coordinated": flags.max_coordinated,
        "shares_prefixes": flags.share_prefixes,
        "shares_weights": flags.share_weights,
    }


def nodes_of(flags: NodeFlags) -> tuple[RoleOptions, ...]:
    """The nodes of `join --role`, which takes the options of all roles. Without role and model there are none."""
    if flags.role is None and not flags.model:
        return ()
    role = Role.DRAFTER if flags.role is None else parse_role(flags.role)
    if flags.over_stages and role is not Role.VERIFIER:
        raise UsageError("--over-stages is for verifiers: their passes run over the stages of others.")
    if role is not Role.STAGE and (flags.layers is not None or flags.memory is not None):
        raise UsageError("--layers and --memory are for --role stage; a KV cache has --kv-memory.")
    if role is not Role.VERIFIER and flags.draft_model is not None:
        raise UsageError("--draft-model is for verifiers; a drafter's own model is its --model.")
    if role is Role.DRAFTER:
        return drafters_of(flags)
    if role is Role.STAGE:
        return (stage_of(flags),)
    return (head_of(flags) if flags.over_stages else verifier_of(flags),)


def parse_role(text: str) -> Role:
    if text not in set(Role):
        raise UsageError(f"--role must be one of {', '.join(Role)}, not {text!r}.")
    return Role(text)


def refuse_shared_ports(nodes: int, network: NetworkOptions) -> None:
    """Refuse ports that several nodes would share."""
    if nodes < 2:
        return
    for maddr in network.host_maddrs:
        ports = [port for protocol, port in pairwise(maddr.split("/")) if protocol in ("tcp", "udp")]
        if any(port != "0" for port in ports):
            raise UsageError(f"Several drafters cannot all listen on {maddr}; let its port be 0.")
    if network.announce_maddrs:
        raise UsageError("Several drafters cannot share an --announce-maddr; start a process for each.")


def _engine_of(flags: NodeFlags, role: Role) -> LoadOptions:
    if flags.max_requests < 1 or flags.max_coordinated < 0 or (flags.threads is not None and flags.threads < 1):
        raise UsageError("--max-requests and --threads must be 1 or more, --max-coordinated 0 or more.")
    if not 0.01 <= flags.share <= 1.0:
        raise UsageError("--share must lie between 0.01 and 1.")
    kind, is_verifier = EngineKind.parse(flags.engine), role is Role.VERIFIER
    pool = parse_pool_size(flags.kv_memory, requests=flags.max_requests, is_verifier=is_verifier)
    return LoadOptions(
        kind=kind,
        device=flags.device,
        dtype=flags.dtype,
        quantize=flags.quantize,
        threads=flags.threads,
        pool_size=replace(pool, share=flags.share),
        is_deterministic=flags.deterministic,
        vllm=VllmOptions(flags.vllm_python, flags.tensor_parallel, flags.pipeline_parallel),
    )


def _target_of(flags: NodeFlags, role: Role) -> "ModelSource":
    """The target of a verifier or stage."""
    from cosine_engine.models.served import ModelSource

    engine, models = _engine_of(flags, role), several(flags.model)
    if len(models) > 1:
        raise UsageError(f"A {role} serves one --model; start a node for each target.")
    chosen = models[0] if models else flags.target or DEFAULT_TARGET
    if not has_files(chosen):
        raise UsageError(f"A {role} holds the target model; {chosen} can only draft.")
    return ModelSource(model=chosen, target=flags.target or chosen, engine=engine)


def _home_of(flags: NodeFlags, source: "ModelSource", *, over_stages: bool) -> "ModelSource | None":
    """The model of a verifier's own drafter. --dtype, --quantize and --kv-memory are the target's."""
    name = flags.draft_model
    if name is None:
        name = _shipped_drafter(source, over_stages=over_stages)
    if name in (None, NO_DRAFT_MODEL):
        return None
    engine = LoadOptions(device=flags.device, threads=flags.threads, pool_size=PoolSize(share=flags.share))
    return replace(source, model=name, target=source.model, engine=engine)


def _shipped_drafter(source: "ModelSource", *, over_stages: bool) -> str | None:
    """The drafter that ships with a target, if it is on this machine; over stages a separate model."""
    drafter = zoo.draft_head(source.model)
    if drafter is None:
        return None
    if over_stages:
        # A draft head reads layers that other machines hold.
        drafter = zoo.default_drafter(source.model)
    elif kind_for(source.engine, zoo.resolve(source.model)) is not EngineKind.TORCH:
        return None
    try:
        zoo.resolve(drafter)
    except UsageError as error:
        LOG.warning("%s runs without its own drafter, and slower: %s", source.model, error)
        return None
    return drafter


def _refuse_for_parts(flags: NodeFlags, engine: LoadOptions, **unfit: bool) -> None:
    """Refuse options of an engine that holds a whole model, and `unfit` ones."""
    given = {
        f"--engine {engine.kind}": engine.kind in (EngineKind.LLAMA, EngineKind.VLLM),
        "--deterministic": engine.is_deterministic,
        "--kv-memory": flags.kv_memory != AUTO,
        **unfit,
    }
    for name, is_given in given.items():
        if is_given:
            raise UsageError(f"{name} does not go with a model in parts, whose layers stages hold.")
    if flags.unload_after is not None:
        raise UsageError("--unload-after is for whole models.")


def _unload_after_s(flags: NodeFlags, *sources: "ModelSource") -> float | None:
    """Seconds without work until models are unloaded. None: never."""
    if flags.unload_after is None:
        return None
    if EngineKind.parse(flags.engine) is EngineKind.VLLM or not all(has_files(source.model) for source in sources):
        raise UsageError("--unload-after is for models that this process holds, with torch or llama.cpp.")
    return parse_pause(flags.unload_after, option="--unload-after")


def _expertise(text: str, model: str) -> tuple[str, ...]:
    """The given domains, else those of an embedded drafter."""
    given = tuple(domain.strip() for domain in text.split(",") if domain.strip())
    if len(given) > MAX_EXPERTISE:
        raise UsageError(f"--expertise takes at most {MAX_EXPERTISE} domains.")
    if given or not model.startswith("zoo:"):
        return given
    return zoo.expertise(model.removeprefix("zoo:"))
