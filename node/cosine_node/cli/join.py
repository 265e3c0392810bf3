"""`cosine-node join`: serve as a drafter or verifier."""

from typing import Annotated

import typer

from cosine_node.cli.events import emitter, hosts, run_until_stopped, several, split_list
from cosine_node.cli.options import (
    AnnounceMaddrs,
    AsJson,
    HostMaddrs,
    IdentityFile,
    InitialPeers,
    LogFormat,
    Network,
    Relays,
)
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_protocol.errors import UsageError
from cosine_protocol.limits import MAX_EXPERTISE
from cosine_protocol.records import Role

DEFAULT_TARGET = "zoo:target"
DEFAULT_DRAFTER = "zoo:draft-general"
SharePrefixes = Annotated[
    bool,
    typer.Option(
        "--share-prefixes",
        envvar="COSINE_SHARE_PREFIXES",
        help="Compute prompts that begin alike once for all clients, who can then tell by the time it takes.",
    ),
]


def join(
    role: Annotated[str, typer.Option(envvar="COSINE_ROLE", help="drafter or verifier")],
    model: Annotated[
        str | None, typer.Option(envvar="COSINE_MODEL", help="zoo:NAME, a folder, a Hugging Face id, or ngram.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(envvar="COSINE_TARGET", help="Target drafted for; for a verifier its public name."),
    ] = None,
    expertise: Annotated[str, typer.Option(envvar="COSINE_EXPERTISE", help="Domains, separated by commas.")] = "",
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
    identity: IdentityFile = None,
    host_maddr: HostMaddrs = None,
    announce_maddr: AnnounceMaddrs = None,
    relay: Relays = None,
    device: Annotated[str, typer.Option(envvar="COSINE_DEVICE", help="auto, cpu, cuda, cuda:0, mps")] = "auto",
    dtype: Annotated[str, typer.Option(envvar="COSINE_DTYPE", help="auto, float32, bfloat16, float16")] = "auto",
    max_requests: Annotated[int, typer.Option(envvar="COSINE_MAX_REQUESTS", help="Served at once.")] = 16,
    share_prefixes: SharePrefixes = False,
    threads: Annotated[int | None, typer.Option(envvar="COSINE_THREADS", help="CPU threads a pass.")] = None,
    emulate: Annotated[
        str | None,
        typer.Option(envvar="COSINE_EMULATE", help="VERIFIER_MS/DRAFTER_MS@RTT_MS: an emulated device and link."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(envvar="COSINE_METRICS_PORT", help="Serve Prometheus metrics there.")
    ] = None,
    log_format: LogFormat = "pretty",
    as_json: AsJson = False,
) -> None:
    """Serve as a drafter or verifier until interrupted; SIGTERM drains and exits 0."""
    from cosine_node.emulation import Emulation
    from cosine_node.model import ModelSource
    from cosine_node.node import NetworkOptions, NodeOptions, run_node

    emit = emitter(log_format, as_json=as_json)
    chosen = _role(role)
    source = _source(chosen, model, target)
    if max_requests < 1 or (threads is not None and threads < 1):
        raise UsageError("--max-requests and --threads must be 1 or more.")
    options = NodeOptions(
        role=chosen,
        source=ModelSource(model=source[0], target=source[1], device=device, dtype=dtype, threads=threads),
        expertise=_expertise(expertise, source[0]),
        max_requests=max_requests,
        shares_prefixes=share_prefixes,
        emulation=Emulation.parse(emulate) if emulate else None,
        metrics_port=metrics_port,
    )
    place = NetworkOptions(
        network=network,
        identity_file=identity,
        initial_peers=several(initial_peers),
        host_maddrs=hosts(host_maddr),
        announce_maddrs=several(announce_maddr),
        relays=several(relay),
    )
    run_until_stopped(lambda stop: run_node(place, options, emit, stop))


def _role(text: str) -> Role:
    if text not in set(Role):
        raise UsageError(f"--role must be drafter or verifier, not {text!r}.")
    return Role(text)


def _source(role: Role, model: str | None, target: str | None) -> tuple[str, str]:
    """The model to load and the target it is for."""
    if role is Role.VERIFIER:
        chosen = model or target or DEFAULT_TARGET
        if chosen == "ngram":
            raise UsageError("A verifier holds the target model; ngram can only draft.")
        return chosen, target or chosen
    return model or DEFAULT_DRAFTER, target or DEFAULT_TARGET


def _expertise(text: str, model: str) -> tuple[str, ...]:
    """The domains given, else those an embedded drafter was trained for."""
    from cosine_node import zoo

    given = split_list(text)
    if len(given) > MAX_EXPERTISE:
        raise UsageError(f"--expertise takes at most {MAX_EXPERTISE} domains.")
    if given or not model.startswith("zoo:"):
        return given
    return zoo.expertise(model.removeprefix("zoo:"))
