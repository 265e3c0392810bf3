"""`cosine-node join`: serve as a drafter, a verifier, or a stage of one."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cosine_node.cli.options import (
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    MODEL_PANEL,
    OPERATION_PANEL,
    AnnounceMaddrs,
    AsJson,
    DeniedPeers,
    Device,
    Dtype,
    EngineName,
    HostMaddrs,
    IdentityFile,
    InitialPeers,
    KvMemory,
    LogFormat,
    MaxRequests,
    Models,
    Network,
    Quantize,
    Relays,
    SwarmFile,
    TargetName,
    access_of,
    listening_maddrs,
    parse_role,
    several,
)
from cosine_node.engine.pool_size import AUTO, parse_memory, parse_pool_size
from cosine_node.models.engine_kind import EngineChoice, EngineKind, parse_engine
from cosine_node.passes.emulation import Emulation
from cosine_node.terminal.events import Emit, telling
from cosine_node.terminal.interrupts import run_until_stopped
from cosine_node.verifier.admission import MAX_COORDINATED
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_protocol.errors import UsageError
from cosine_protocol.limits import MAX_EXPERTISE
from cosine_protocol.records import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cosine_node.models.model import ModelSource
    from cosine_node.serving.node_options import NetworkOptions, NodeOptions
    from cosine_node.stages.opening import StageSource
    from cosine_p2p.access import Access

# --------------------
# Options of `join` for a drafter that learns.


DEFAULT_LEARN_MEMORY: Final = "64MiB"

Learn = Annotated[
    bool,
    typer.Option(
        "--learn",
        metavar="",
        envvar="COSINE_LEARN",
        help="Let a drafter learn, when idle, from texts that clients let it keep; they stay on this machine.",
        rich_help_panel=MODEL_PANEL,
    ),
]
LearnMemory = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        envvar="COSINE_LEARN_MEMORY",
        help="Disk space of the texts that a drafter keeps to learn from.",
        rich_help_panel=MODEL_PANEL,
    ),
]


def parse_learning(role: Role, models: tuple[str, ...], *, learns: bool, memory: str) -> int | None:
    """The bytes of the texts to keep, None for a node that does not learn. Raises `UsageError`."""
    from cosine_node.learning.stream_store import MIN_BYTES
    from cosine_node.models.model import NGRAM

    if not learns:
        if memory != DEFAULT_LEARN_MEMORY:
            raise UsageError("--learn-memory is for drafters that learn: add --learn.")
        return None
    if role is not Role.DRAFTER:
        raise UsageError(f"--learn is for drafters: what a {role} serves is what its clients asked for.")
    if NGRAM in models:
        raise UsageError(f"{NGRAM} has no weights that could learn; leave --learn out.")
    size_bytes, _ = parse_memory(memory, option="--learn-memory")
    if size_bytes is None or size_bytes < MIN_BYTES:
        raise UsageError(f"--learn-memory takes a size of {MIN_BYTES >> 20}MiB or more, not {memory!r}.")
    return size_bytes


# --------------------
# Options of `join` for a model in parts: the layers of a stage, and a verifier without weights.


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
    from cosine_node.stages.opening import StageSource

    return StageSource(
        model=source.model,
        target=source.target,
        engine=source.engine,
        layers=layers or AUTO,
        memory=memory or AUTO,
        requests=requests,
    )


# --------------------


RoleName = Annotated[str, typer.Option(metavar="ROLE", envvar="COSINE_ROLE", help="drafter, verifier or stage.")]
Expertise = Annotated[
    str,
    typer.Option(
        metavar="DOMAINS",
        envvar="COSINE_EXPERTISE",
        help="What a drafter is good at, separated by commas; embedded drafters know theirs.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT", envvar="COSINE_THREADS", help="CPU threads of a pass.", rich_help_panel=MODEL_PANEL
    ),
]
SharePrefixes = Annotated[
    bool,
    typer.Option(
        "--share-prefixes",
        metavar="",
        envvar="COSINE_SHARE_PREFIXES",
        help="Compute prompts that begin alike once for all clients, who can then tell by the time it takes.",
        rich_help_panel=OPERATION_PANEL,
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        metavar="",
        envvar="COSINE_DETERMINISTIC",
        help="Let no token depend on what else a verifier computes at the time, bit for bit; it costs speed.",
        rich_help_panel=MODEL_PANEL,
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        metavar="MODEL",
        envvar="COSINE_DRAFT_MODEL",
        help="A small model that a verifier holds beside its target, to draft where nobody's drafts have come.",
        rich_help_panel=MODEL_PANEL,
    ),
]
MaxCoordinated = Annotated[
    int,
    typer.Option(
        metavar="COUNT",
        envvar="COSINE_MAX_COORDINATED",
        help="Requests whose drafters a verifier coordinates for clients far away; 0 for none.",
        rich_help_panel=OPERATION_PANEL,
    ),
]
Emulate = Annotated[
    str | None,
    typer.Option(
        metavar="PROFILE",
        envvar="COSINE_EMULATE",
        help="VERIFIER_MS/DRAFTER_MS@RTT_MS: an emulated device and link.",
        rich_help_panel=OPERATION_PANEL,
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        envvar="COSINE_METRICS_PORT",
        help="Serve Prometheus metrics there.",
        rich_help_panel=OPERATION_PANEL,
    ),
]
MetricsHost = Annotated[
    str,
    typer.Option(
        metavar="HOST",
        envvar="COSINE_METRICS_HOST",
        help="Where to serve them; 0.0.0.0 is on every address.",
        rich_help_panel=OPERATION_PANEL,
    ),
]


def join(
    role: RoleName,
    model: Models = None,
    target: TargetName = None,
    draft_model: DraftModel = None,
    expertise: Expertise = "",
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
    swarm: SwarmFile = None,
    deny: DeniedPeers = None,
    identity: IdentityFile = None,
    host_maddr: HostMaddrs = None,
    announce_maddr: AnnounceMaddrs = None,
    relay: Relays = None,
    engine: EngineName = "auto",
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    kv_memory: KvMemory = "auto",
    deterministic: Deterministic = False,
    max_requests: MaxRequests = 16,
    max_coordinated: MaxCoordinated = MAX_COORDINATED,
    share_prefixes: SharePrefixes = False,
    threads: Threads = None,
    layers: Layers = None,
    memory: Memory = None,
    over_stages: OverStages = False,
    learn: Learn = False,
    learn_memory: LearnMemory = DEFAULT_LEARN_MEMORY,
    emulate: Emulate = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    log_format: LogFormat = "pretty",
    as_json: AsJson = False,
) -> None:
    """Serve as a drafter, verifier or stage until interrupted; SIGTERM drains and exits 0."""
    chosen = parse_role(role)
    _check_counts(max_requests=max_requests, max_coordinated=max_coordinated, threads=threads)
    loading: dict[str, Any] = {"device": device, "dtype": dtype, "threads": threads, "quantize": quantize}
    choice = _engine_choice(chosen, engine, kv_memory, max_requests, is_deterministic=deterministic, **loading)
    sources = _sources(chosen, several(model), target, choice)
    unfit = {"--emulate": bool(emulate), "--kv-memory": kv_memory != AUTO}
    check_parts(chosen, choice, layers, memory, is_head=over_stages, given=unfit)
    access, places = access_of(network, swarm, deny), (initial_peers, host_maddr, announce_maddr, relay)
    network_options = _network_options(access, identity, *places, metrics_port, metrics_host)
    _refuse_shared_ports(len(sources), network_options)
    nodes = _node_options(
        sources,
        expertise,
        role=chosen,
        home=_home_source(chosen, draft_model, sources[0]),
        max_requests=max_requests,
        max_coordinated=max_coordinated,
        shares_prefixes=share_prefixes,
        emulation=Emulation.parse(emulate) if emulate else None,
        runs_over_stages=over_stages,
        learn_bytes=parse_learning(chosen, several(model), learns=learn, memory=learn_memory),
    )
    with telling(log_format, as_json=as_json) as emit:
        run_until_stopped(lambda stop: _run(network_options, nodes, emit, stop, layers=layers, memory=memory))


async def _run(
    network: "NetworkOptions",
    nodes: "list[NodeOptions]",
    emit: Emit,
    stop: asyncio.Event,
    *,
    layers: str | None,
    memory: str | None,
) -> None:
    """Run the nodes until `stop` is set: those of whole models, a stage, or a head."""
    first = nodes[0]
    if first.role is Role.STAGE:
        from cosine_node.serving.stage_node import run_stage

        source = part_of(first.source, layers, memory, requests=first.max_requests)
        await run_stage(network, source, emit, stop)
    elif first.runs_over_stages:
        from cosine_node.serving.head import run_head

        await run_head(network, first, emit, stop)
    else:
        from cosine_node.serving.node import run_nodes

        await run_nodes(network, nodes, emit, stop)


def _network_options(
    access: "Access",
    identity: Path | None,
    initial_peers: list[str] | None,
    host_maddrs: list[str] | None,
    announce_maddrs: list[str] | None,
    relays: list[str] | None,
    metrics_port: int | None,
    metrics_host: str,
) -> "NetworkOptions":
    from cosine_node.serving.node_options import NetworkOptions

    return NetworkOptions(
        access=access,
        identity_file=identity,
        initial_peers=several(initial_peers),
        host_maddrs=listening_maddrs(host_maddrs),
        announce_maddrs=several(announce_maddrs),
        relays=several(relays),
        metrics_port=metrics_port,
        metrics_host=metrics_host,
    )


def _node_options(sources: "Sequence[ModelSource]", expertise: str, **shared: Any) -> "list[NodeOptions]":
    """The options of a node for each model."""
    from cosine_node.serving.node_options import NodeOptions

    return [NodeOptions(source=one, expertise=_expertise(expertise, one.model), **shared) for one in sources]


def _check_counts(*, max_requests: int, max_coordinated: int, threads: int | None) -> None:
    if max_requests < 1 or max_coordinated < 0 or (threads is not None and threads < 1):
        raise UsageError("--max-requests and --threads must be 1 or more, --max-coordinated 0 or more.")


def _engine_choice(role: Role, engine: str, kv_memory: str, requests: int, **loading: Any) -> EngineChoice:
    """Raises `UsageError`."""
    pool_size = parse_pool_size(kv_memory, requests=requests, is_verifier=role is Role.VERIFIER)
    return EngineChoice(kind=parse_engine(engine), pool_size=pool_size, **loading)


def _sources(role: Role, models: tuple[str, ...], target: str | None, engine: EngineChoice) -> "list[ModelSource]":
    """The models to load, each with the target it is for. Raises `UsageError`."""
    from cosine_node import zoo
    from cosine_node.models.model import ModelSource

    if role is Role.DRAFTER and engine.is_deterministic:
        raise UsageError("--deterministic is for verifiers: drafts do not decide what the text is.")
    if role is Role.DRAFTER:
        names = models or (DEFAULT_DRAFTER,)
        return [ModelSource(model=name, target=target or zoo.default_target(name), engine=engine) for name in names]
    if len(models) > 1:
        raise UsageError(f"A {role} serves one --model; start a node for each target.")
    chosen = models[0] if models else target or DEFAULT_TARGET
    if chosen == "ngram":
        raise UsageError(f"A {role} holds the target model; ngram can only draft.")
    return [ModelSource(model=chosen, target=target or chosen, engine=engine)]


def _home_source(role: Role, model: str | None, target: "ModelSource") -> "ModelSource | None":
    """The model of a verifier's own drafter, on the target's device. Raises `UsageError`."""
    if model is None:
        return None
    if role is not Role.VERIFIER:
        raise UsageError("--draft-model is for verifiers; a drafter's own model is its --model.")
    # The target's dtype and quantisation are its own, and so is the memory that --kv-memory speaks of.
    engine = EngineChoice(device=target.engine.device, threads=target.engine.threads)
    return replace(target, model=model, target=target.model, engine=engine)


def _refuse_shared_ports(nodes: int, network: "NetworkOptions") -> None:
    """Raise `UsageError` if several nodes would have to listen on one port, or be reached at one."""
    if nodes == 1:
        return
    for maddr in network.host_maddrs:
        ports = [port for protocol, port in pairwise(maddr.split("/")) if protocol in ("tcp", "udp")]
        if any(port != "0" for port in ports):
            raise UsageError(f"Several drafters cannot all listen on {maddr}; let its port be 0.")
    if network.announce_maddrs:
        raise UsageError("Several drafters cannot share an --announce-maddr; start a process for each.")


def _expertise(text: str, model: str) -> tuple[str, ...]:
    """The domains given, else those an embedded drafter was trained for. Raises `UsageError`."""
    from cosine_node import zoo

    given = tuple(domain.strip() for domain in text.split(",") if domain.strip())
    if len(given) > MAX_EXPERTISE:
        raise UsageError(f"--expertise takes at most {MAX_EXPERTISE} domains.")
    if given or not model.startswith("zoo:"):
        return given
    return zoo.expertise(model.removeprefix("zoo:"))
