"""`cosine-node join`: serve as a drafter, a verifier, or a stage of one. `doctor` is `join --check`.

`draft`, `verify`, `stage` and `head` are `join` with the options of one role alone.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cosine_engine import zoo
from cosine_engine.load_options import EngineKind, LoadOptions
from cosine_engine.models.engine_kind import has_files, kind_for
from cosine_engine.pool_size import AUTO, PoolSize
from cosine_node.cli.findings import tell_findings
from cosine_node.cli.node_options import (
    Place,
    Relays,
    ServedModelOptions,
    model_option,
    operation_option,
    parse_role,
)
from cosine_node.passes.emulation import Emulation
from cosine_node.serving.guest import GuestRules, Hours, parse_pause
from cosine_node.serving.node_options import JoinPlan, NetworkOptions, NodeOptions
from cosine_node.verifier.admission import MAX_COORDINATED
from cosine_protocol.errors import UsageError
from cosine_protocol.records import ALL_TARGETS, MAX_EXPERTISE, Role
from cosine_terminal.events import Emit, telling
from cosine_terminal.help_screen import everyday
from cosine_terminal.interrupts import run_until_stopped
from cosine_terminal.options import (
    DEFAULT_TARGET,
    AsJson,
    DeniedPeers,
    Link,
    LogFormat,
    declaring,
    option,
    peers_of,
    several,
    takes_options,
)

if TYPE_CHECKING:
    from cosine_engine.models.served import ModelSource

LOG = logging.getLogger(__name__)
NO_DRAFT_MODEL: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Options of a stage, and of a verifier over stages."""

    layers: Annotated[
        str | None,
        model_option(
            "layers",
            "FIRST:END",
            "Layers of a stage, as in 8:16, or auto. The end is excluded; auto are those that the swarm lacks.",
            everyday=True,
        ),
    ] = None
    memory: Annotated[
        str | None,
        model_option(
            "memory",
            "SIZE",
            "Memory for a stage, such as 6GiB. It holds weights and KV cache; or a share of the free memory.",
            everyday=True,
        ),
    ] = None
    over_stages: Annotated[
        bool,
        model_option(
            "over-stages",
            "",
            "Hold no weights: run a verifier's passes over stages of the swarm, which hold the layers.",
        ),
    ] = False
    warm_spare: Annotated[
        bool,
        operation_option(
            "warm-spare/--no-warm-spare",
            "",
            "Keep a second chain of stages ready to take over from a verifier's first one.",
        ),
    ] = True
    share_weights: Annotated[
        bool,
        operation_option(
            "share-weights/--no-share-weights", "", "Let stages download the target's weights from this node."
        ),
    ] = True

    def check(self, role: Role, engine: LoadOptions, *, kv_memory: str) -> None:
        """Raise `UsageError` for options that exclude a model in parts, or that require one."""
        if self.over_stages and role is not Role.VERIFIER:
            raise UsageError("--over-stages is for verifiers: their passes run over the stages of others.")
        if role is not Role.STAGE and (self.layers is not None or self.memory is not None):
            raise UsageError("--layers and --memory are for --role stage; a KV cache has --kv-memory.")
        if role is not Role.STAGE and not self.over_stages:
            return
        unfit = {
            f"--engine {engine.kind}": engine.kind in (EngineKind.LLAMA, EngineKind.VLLM),
            "--quantize": engine.quantize is not None and (self.over_stages or engine.quantize.startswith("int")),
            "--deterministic": engine.is_deterministic,
            "--dtype": self.over_stages and engine.dtype != AUTO,
            "--kv-memory": kv_memory != AUTO,
        }
        for name, is_given in unfit.items():
            if is_given:
                raise UsageError(f"{name} does not go with a model in parts, whose layers stages hold.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWork:
    """Options of the node's work and of its computation."""

    draft_model: Annotated[
        str | None,
        model_option(
            "draft-model",
            "MODEL",
            "Model that drafts beside a verifier's. Or an EAGLE-3 head; mtp: the target's own layer; none: no "
            "drafter. Default: the head that ships for the target, or over stages the general drafter.",
            everyday=True,
        ),
    ] = None
    expertise: Annotated[
        str,
        model_option(
            "expertise",
            "DOMAINS",
            "Domains of a drafter, separated by commas. Default: those of the model, if it ships.",
        ),
    ] = ""
    deterministic: Annotated[
        bool, model_option("deterministic", "", "Compute each token bit for bit as in any other batch; slower.")
    ] = False
    threads: Annotated[
        int | None,
        model_option("threads", "COUNT", "Number of CPU threads. Default: 1 for a small model, else all cores."),
    ] = None
    max_coordinated: Annotated[
        int,
        operation_option(
            "max-coordinated",
            "COUNT",
            "Maximum number of requests whose drafters a verifier coordinates for distant clients.",
        ),
    ] = MAX_COORDINATED
    share_prefixes: Annotated[
        bool,
        operation_option(
            "share-prefixes",
            "",
            "Share cached prefixes between clients, who can then infer them from response times.",
        ),
    ] = False
    emulate: Annotated[
        str | None,
        operation_option(
            "emulate", "PROFILE", "Emulated device and link: VERIFIER_MS/DRAFTER_MS@RTT_MS or @RTT_MS."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AsGuest:
    """Options of a node on a machine that others use."""

    hours: Annotated[
        str | None,
        operation_option("hours", "BEGIN-END", "Time of day in which the node works, such as 22:00-07:00."),
    ] = None
    only_idle: Annotated[
        bool,
        operation_option("only-idle", "", "Work while others leave CPU and card idle.", everyday=True),
    ] = False
    on_mains: Annotated[
        bool, operation_option("on-mains", "", "Work only while the machine is not on battery.")
    ] = False
    unload_after: Annotated[
        str | None,
        operation_option(
            "unload-after",
            "TIME",
            "Give back the model's memory after a time without work, such as 30m; the next request waits for it.",
        ),
    ] = None

    share: Annotated[
        float,
        operation_option("share", "PART", "Part of the time that passes take, and of the usual KV cache."),
    ] = 1.0

    def unload_after_s(self, engine: LoadOptions, sources: "list[ModelSource]") -> float | None:
        """Seconds without work until models are unloaded. None for never. Raises `UsageError`."""
        if self.unload_after is None:
            return None
        if engine.kind is EngineKind.VLLM or not all(has_files(source.model) for source in sources):
            raise UsageError("--unload-after is for models that this process holds, with torch or llama.cpp.")
        return parse_pause(self.unload_after, option="--unload-after")

    @property
    def rules(self) -> GuestRules:
        """The rules of the node. Raises `UsageError`."""
        hours = None if self.hours is None else Hours.parse(self.hours)
        return GuestRules(hours=hours, only_idle=self.only_idle, on_mains=self.on_mains)


@takes_options
def join(
    served: ServedModelOptions,
    place: Place,
    parts: Parts,
    work: OwnWork,
    guest: AsGuest,
    role: Annotated[str | None, option("role", "ROLE", "drafter, verifier or stage.", everyday=True)] = None,
    deny: DeniedPeers = None,
    relay: Relays = None,
    metrics_port: Annotated[
        int | None, operation_option("metrics-port", "PORT", "Port of the Prometheus metrics.")
    ] = None,
    metrics_host: Annotated[
        str, operation_option("metrics-host", "HOST", "Address of the metrics; 0.0.0.0 is all.")
    ] = "127.0.0.1",
    page: Annotated[
        int | None,
        operation_option("page", "PORT", "Port of a page of the swarm, for this machine only; 0 is any free port."),
    ] = None,
    check: Annotated[bool, everyday("--check", help="Check that the node could work, and exit.")] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report", metavar="", help="Check, and print a report without addresses, peer ids and paths."
        ),
    ] = False,
    log_format: LogFormat = "pretty",
    as_json: AsJson = False,
) -> None:
    """Serve as a drafter, verifier or stage until interrupted.

    SIGTERM drains and exits 0.
    """
    network = place.network_options(
        deny,
        relays=several(relay),
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        guest=guest.rules,
    )
    if role is None and not (check or report):
        raise UsageError(f"Say what to serve as: --role {', '.join(Role)}.")
    # A check without role and model is that of a client.
    chosen = parse_role(role) if role is not None else Role.DRAFTER if served.model else None
    nodes = () if chosen is None else _nodes(chosen, served, parts, work, guest)
    _refuse_shared_ports(len(nodes), network)
    target = nodes[0].source.target if nodes else served.target or ALL_TARGETS
    plan = JoinPlan(network=network, nodes=nodes, target=target)
    if check or report:
        tell_findings(plan, as_json=as_json, as_report=report)
        return
    with telling(log_format, as_json=as_json) as emit:
        if page is None:
            run_until_stopped(lambda stop: _run(plan, emit, stop))
        else:
            _show_page(page, plan, emit)


def doctor(**given: Any) -> None:
    """Look for what keeps a node or client from working here.

    It takes the options of `join`.
    """
    join(check=True, **given)


_FLAGS: Final = signature(join).parameters
declaring(doctor, [flag for flag in _FLAGS.values() if flag.name != "check"])

_OF_A_DRAFTER: Final = frozenset({"expertise"})
_OF_A_VERIFIER: Final = frozenset({"draft_model", "max_coordinated", "share_prefixes", "share_weights"})
_OF_A_STAGE: Final = frozenset({"layers", "memory"})
_OF_A_HEAD: Final = frozenset({"over_stages", "warm_spare"})
_OF_A_WHOLE_MODEL: Final = frozenset({"unload_after"})
_OF_AN_ENGINE: Final = frozenset(
    {"engine", "quantize", "kv_memory", "deterministic", "vllm_python", "tensor_parallel", "pipeline_parallel"}
)
"""Options of an engine that holds a whole model."""


def _verb(name: str, role: Role, text: str, *, without: frozenset[str], **fixed: Any) -> Callable[..., None]:
    """Return a command that is `join` with this role, without the options of other roles."""
    fixed["role"] = str(role)
    unset = {flag: _FLAGS[flag].default for flag in without - fixed.keys()}
    shown = [flag for flag in _FLAGS.values() if flag.name not in without | fixed.keys()]

    def run(link: str | None, **given: Any) -> None:
        join(**unset, **fixed, **{**given, "initial_peers": [*peers_of(link, given["initial_peers"])]})

    run.__name__, run.__doc__ = name, text
    first = Parameter("link", Parameter.KEYWORD_ONLY, default=None, annotation=Link)
    return declaring(run, [first, *shown])


draft = _verb(
    "draft",
    Role.DRAFTER,
    "Guess the next tokens of a target for its verifiers.",
    without=_OF_A_VERIFIER | _OF_A_STAGE | _OF_A_HEAD,
)
verify = _verb(
    "verify",
    Role.VERIFIER,
    "Hold a target and generate with it for clients.",
    without=_OF_A_DRAFTER | _OF_A_STAGE | _OF_A_HEAD,
)
stage = _verb(
    "stage",
    Role.STAGE,
    "Hold some layers of a target too large for one machine.",
    without=_OF_A_DRAFTER | _OF_A_VERIFIER | _OF_A_HEAD | _OF_A_WHOLE_MODEL | (_OF_AN_ENGINE - {"quantize"}),
)
head = _verb(
    "head",
    Role.VERIFIER,
    "Generate for clients with a target whose layers stages hold.",
    without=_OF_A_DRAFTER | _OF_A_STAGE | _OF_A_WHOLE_MODEL | _OF_AN_ENGINE | {"dtype", "share"},
    over_stages=True,
)


def _nodes(
    role: Role, served: ServedModelOptions, parts: Parts, work: OwnWork, guest: AsGuest
) -> "tuple[NodeOptions, ...]":
    """The nodes to run. Raises `UsageError`."""
    if served.max_requests < 1 or work.max_coordinated < 0 or (work.threads is not None and work.threads < 1):
        raise UsageError("--max-requests and --threads must be 1 or more, --max-coordinated 0 or more.")
    engine = served.engine_choice(role, threads=work.threads, is_deterministic=work.deterministic)
    if not 0.01 <= guest.share <= 1.0:
        raise UsageError("--share must lie between 0.01 and 1.")
    engine = replace(engine, pool_size=replace(engine.pool_size, share=guest.share))
    models = several(served.model)
    sources = _sources(role, models, served.target, engine)
    parts.check(role, engine, kv_memory=served.kv_memory)
    draft_model = work.draft_model
    if draft_model is not None and role is not Role.VERIFIER:
        raise UsageError("--draft-model is for verifiers; a drafter's own model is its --model.")
    if draft_model is None and role is Role.VERIFIER:
        draft_model = _shipped_drafter(sources[0], over_stages=parts.over_stages)
    home = None
    if draft_model not in (None, NO_DRAFT_MODEL):
        # --dtype, --quantize and --kv-memory are the target's.
        beside = LoadOptions(device=engine.device, threads=work.threads, pool_size=PoolSize(share=guest.share))
        home = replace(sources[0], model=draft_model, target=sources[0].model, engine=beside)
    emulation = Emulation.parse(work.emulate) if work.emulate else None
    unload_after_s = guest.unload_after_s(engine, sources)
    if unload_after_s is not None and (role is Role.STAGE or parts.over_stages):
        raise UsageError("--unload-after is for whole models.")
    return tuple(
        NodeOptions(
            role=role,
            source=source,
            home=home,
            expertise=_expertise(work.expertise, source.model),
            max_requests=served.max_requests,
            max_coordinated=work.max_coordinated,
            shares_prefixes=work.share_prefixes,
            emulation=emulation,
            runs_over_stages=parts.over_stages,
            keeps_spare_warm=parts.warm_spare,
            shares_weights=parts.share_weights,
            unload_after_s=unload_after_s,
            share=guest.share,
            layers=parts.layers or AUTO,
            # Half of the free memory is usual.
            memory=parts.memory or (AUTO if guest.share == 1.0 else f"{guest.share / 2:.3f}"),
        )
        for source in sources
    )


def _show_page(port: int, plan: JoinPlan, emit: Emit) -> None:
    """Run the nodes with a page. Raises `UsageError` if it cannot be shown."""
    from cosine_gateway.http.server import listening
    from cosine_node.cli.node_page import HOST, page_access, run_with_page

    if not 0 <= port <= 65_535:
        raise UsageError("--page must lie between 0 and 65535.")
    access = page_access(plan.network.access)
    listener = listening(HOST, port)
    run_until_stopped(
        lambda stop: run_with_page(
            lambda emit: _run(plan, emit, stop), listener, access=access, target=plan.target, emit=emit, stop=stop
        )
    )


async def _run(plan: JoinPlan, emit: Emit, stop: asyncio.Event) -> None:
    emit("importing", {})
    first = plan.nodes[0]
    if first.role is Role.STAGE:
        from cosine_node.serving.stage_node import run_stage

        await run_stage(plan.network, first, emit, stop)
    elif first.runs_over_stages:
        from cosine_node.serving.head import run_head

        await run_head(plan.network, first, emit, stop)
    else:
        from cosine_node.serving.node import run_nodes

        await run_nodes(plan.network, plan.nodes, emit, stop)


def _sources(role: Role, models: tuple[str, ...], target: str | None, engine: LoadOptions) -> "list[ModelSource]":
    """The models to load, each with its target. Raises `UsageError`."""
    from cosine_engine.models.served import ModelSource

    if role is Role.DRAFTER:
        if engine.is_deterministic:
            raise UsageError("--deterministic is for verifiers: drafts do not change the text.")
        names = models or (zoo.default_drafter(target),)
        return [ModelSource(model=name, target=target or zoo.default_target(name), engine=engine) for name in names]
    if len(models) > 1:
        raise UsageError(f"A {role} serves one --model; start a node for each target.")
    chosen = models[0] if models else target or DEFAULT_TARGET
    if not has_files(chosen):
        raise UsageError(f"A {role} holds the target model; {chosen} can only draft.")
    return [ModelSource(model=chosen, target=target or chosen, engine=engine)]


def _shipped_drafter(source: "ModelSource", *, over_stages: bool) -> str | None:
    """The drafter beside a target that ships with it, if it is on this machine; over stages a model of its own."""
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


def _refuse_shared_ports(nodes: int, network: NetworkOptions) -> None:
    """Raise `UsageError` if several nodes would share a port."""
    if nodes < 2:
        return
    for maddr in network.host_maddrs:
        ports = [port for protocol, port in pairwise(maddr.split("/")) if protocol in ("tcp", "udp")]
        if any(port != "0" for port in ports):
            raise UsageError(f"Several drafters cannot all listen on {maddr}; let its port be 0.")
    if network.announce_maddrs:
        raise UsageError("Several drafters cannot share an --announce-maddr; start a process for each.")


def _expertise(text: str, model: str) -> tuple[str, ...]:
    """The given domains, else those of an embedded drafter. Raises `UsageError`."""
    given = tuple(domain.strip() for domain in text.split(",") if domain.strip())
    if len(given) > MAX_EXPERTISE:
        raise UsageError(f"--expertise takes at most {MAX_EXPERTISE} domains.")
    if given or not model.startswith("zoo:"):
        return given
    return zoo.expertise(model.removeprefix("zoo:"))
