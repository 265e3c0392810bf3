"""`cosine-node serve`: the swarm behind OpenAI's API."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cosine_node.cli.options import (
    DEFAULT_AUDIT,
    DEFAULT_TARGET,
    PEERS_PANEL,
    AsJson,
    AuditShare,
    CoordinationName,
    DeniedPeers,
    GenerationConfig,
    IdentityFile,
    InitialPeers,
    LogFormat,
    Network,
    PromptWindow,
    ShareFeedback,
    ShareReceipts,
    SwarmFile,
    Target,
    TrustedPeers,
    WarmSpareFlag,
    parse_generation_config,
    several,
    shared_with_drafters,
)
from cosine_node.terminal.events import telling
from cosine_node.terminal.interrupts import run_until_stopped
from cosine_p2p.request.options import AUTO
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_p2p.trust.mandates import Coordination
from cosine_protocol.errors import UsageError

DEFAULT_PORT: Final = 8000
"""As vLLM's server, so that clients configured for that one find this one."""

MAX_PORT: Final = 65_535
"""A TCP port has 16 bits."""

SENTENCES: Final = {
    "open": "Anybody who reaches {host} may generate; give an --api-key to change that.",
    "ready": "Serving {model} at {url}/v1",
    "request": "{method} {path} {status} in {seconds} s, {id}",
    "stopped": "Stopped.",
}
"""What people read of the gateway's events."""

ApiKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key", metavar="KEY", envvar="COSINE_API_KEY", help="Key that a request must carry; may be repeated."
    ),
]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        metavar="ORIGIN",
        envvar="COSINE_CORS_ORIGIN",
        help="Web page that may ask from a browser; may be repeated.",
    ),
]
HostNames = Annotated[
    list[str] | None,
    typer.Option(
        "--host-name",
        metavar="NAME",
        envvar="COSINE_HOST_NAME",
        help="Name under which the gateway is asked, besides localhost and its addresses; may be repeated.",
    ),
]

Host = Annotated[str, typer.Option(metavar="HOST", envvar="COSINE_HOST", help="Address to listen on.")]
Port = Annotated[int, typer.Option(metavar="PORT", envvar="COSINE_PORT", help="0 is any free one.")]
GatewayStrategy = Annotated[
    str,
    typer.Option(metavar="NAME", envvar="COSINE_STRATEGY", help="cosine or plain.", rich_help_panel=PEERS_PANEL),
]
GatewayDrafters = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        envvar="COSINE_MAX_DRAFTERS",
        help="Ask at most so many; 0 sends no prompt to any.",
        rich_help_panel=PEERS_PANEL,
    ),
]
GenerationTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", envvar="COSINE_TIMEOUT", help="For a generation.")
]
ConcurrentRequests = Annotated[
    int,
    typer.Option(
        metavar="COUNT", envvar="COSINE_MAX_REQUESTS", help="Generations at once; four times as many wait."
    ),
]


def serve(
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
    swarm: SwarmFile = None,
    identity: IdentityFile = None,
    deny: DeniedPeers = None,
    target: Target = DEFAULT_TARGET,
    strategy: GatewayStrategy = "cosine",
    max_drafters: GatewayDrafters = None,
    prompt_window: PromptWindow = None,
    trust: TrustedPeers = None,
    coordination: CoordinationName = Coordination.AUTO.value,
    audit: AuditShare = DEFAULT_AUDIT,
    receipts: ShareReceipts = True,
    share_feedback: ShareFeedback = None,
    warm_spare: WarmSpareFlag = False,
    generation_config: GenerationConfig = AUTO,
    timeout: GenerationTimeout = 600.0,
    max_requests: ConcurrentRequests = 16,
    api_key: ApiKeys = None,
    cors_origin: CorsOrigins = None,
    host_name: HostNames = None,
    log_format: LogFormat = "pretty",
    as_json: AsJson = False,
) -> None:
    """Serve OpenAI's API until interrupted; SIGTERM finishes what is under way and exits 0."""
    from cosine_node.gateway.app import GatewayOptions
    from cosine_node.gateway.server import listening, serve_gateway

    _check_numbers(port=port, max_requests=max_requests)
    options = GatewayOptions(
        model_name=model_name(target),
        api_keys=_checked_keys(several(api_key)),
        cors_origins=several(cors_origin),
        host_names=several(host_name),
        max_requests=max_requests,
    )
    client: dict[str, Any] = {
        "initial_peers": several(initial_peers),
        "network": network,
        "swarm": swarm,
        "identity": identity,
        "deny": several(deny),
        "target": target,
        "strategy": strategy,
        "max_drafters": max_drafters,
        "trust": several(trust),
        "coordination": coordination,
        "audit": audit,
        **shared_with_drafters(prompt_window=prompt_window, receipts=receipts, feedback=share_feedback),
        "warm_spare": warm_spare,
        "generation_config": parse_generation_config(generation_config),
        "timeout_s": timeout,
    }
    with telling(log_format, as_json=as_json, sentences=SENTENCES) as emit, listening(host, port) as listener:
        if not options.api_keys and not is_loopback(host):
            emit("open", {"host": host})
        run_until_stopped(lambda stop: serve_gateway(listener, host, client, options, emit, stop))


def _checked_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Raises `UsageError` for a key that a header cannot carry, and for an empty one, which would lock nothing."""
    if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise UsageError("An --api-key must be printable ASCII without spaces, and not empty.")
    return keys


def model_name(target: str) -> str:
    """Return what requests call the target: a folder's or a file's own name, or NAME without its digest.

    Raises `UsageError`.
    """
    from cosine_p2p.text.target import parse_target

    path = Path(target).expanduser()
    return path.resolve().name if path.exists() else parse_target(target)[0]


def is_loopback(host: str) -> bool:
    """True if only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_numbers(*, port: int, max_requests: int) -> None:
    if not 0 <= port <= MAX_PORT:
        raise UsageError(f"--port must lie between 0 and {MAX_PORT}.")
    if max_requests < 1:
        raise UsageError("--max-requests must be 1 or more.")
