"""`cosine serve`: the swarm behind OpenAI's and Anthropic's APIs."""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Annotated, Final

from cosine_p2p.access import Access
from cosine_p2p.request.options import KEEP, ClientOptions
from cosine_protocol.errors import UsageError
from cosine_terminal.companions import PARTS, installed_part
from cosine_terminal.events import telling
from cosine_terminal.interrupts import run_until_stopped
from cosine_terminal.options import (
    ENTRANCE,
    SERVED_BY,
    AsJson,
    InitialPeers,
    Link,
    LogFormat,
    declared,
    option,
    peers_of,
    several,
    takes_options,
)

if TYPE_CHECKING:
    from cosine_gateway.page.machine import PageMachine

SENTENCES: Final = {
    "open": "Anyone who reaches {host} can generate; --api-key restricts that.",
    "waiting": "Waiting for a verifier. {said}",
    "ready": "Serving {model} at {url}/v1, and a page at {url}/",
    "request": "{method} {path} {status} in {seconds} s, {id}",
    "stopped": "Stopped.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFlags:
    """Further options of `serve`."""

    max_requests: int = declared(
        16, "COUNT", "Maximum number of concurrent generations; four times as many may wait."
    )
    api_key: list[str] | None = declared(
        None, "KEY", "API key that requests must send; may be repeated.", everyday=True
    )
    cors_origin: list[str] | None = declared(
        None, "ORIGIN", "Origin allowed by CORS, besides local ones; may be repeated."
    )
    host_name: list[str] | None = declared(
        None, "NAME", "Public host name of the gateway, besides private names and addresses; may be repeated."
    )


@takes_options
def serve(
    client: Annotated[ClientOptions, (*ENTRANCE, *SERVED_BY)],
    *,
    host: Annotated[str, option("host", "HOST", "Address to listen on.", everyday=True)] = "127.0.0.1",
    # vLLM's port, so that clients configured for vLLM find the gateway.
    port: Annotated[int, option("port", "PORT", "Port to listen on; 0 is any free port.", everyday=True)] = 8000,
    link: Link = None,
    initial_peers: InitialPeers = None,
    flags: GatewayFlags,
    log_format: LogFormat = "pretty",
    as_json: AsJson = False,
) -> None:
    """Serve OpenAI's and Anthropic's APIs until interrupted.

    SIGTERM finishes running requests and exits 0.
    """
    from cosine_gateway.http.app import GatewayOptions
    from cosine_gateway.http.server import listening, serve_gateway

    if not 0 <= port <= 65_535:
        raise UsageError("--port must lie between 0 and 65535.")
    if flags.max_requests < 1:
        raise UsageError("--max-requests must be 1 or more.")
    keys = several(flags.api_key)
    # A header cannot carry other keys, and an empty key would protect nothing.
    if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise UsageError("An --api-key must be printable ASCII without spaces, and not empty.")
    if len(keys) > 1 and client.get("past_replies") == KEEP:
        raise UsageError("--past-replies keep is for one user: speed would reveal replies to other keys.")
    # Nodes answer the page's questions about this machine, where they are installed.
    own_machine: Callable[[], PageMachine] | None = installed_part(PARTS, "page_machine")
    options = GatewayOptions(
        model_name="" if (target := client.get("target")) is None else model_name(target),
        api_keys=keys,
        cors_origins=several(flags.cors_origin),
        # The machine's name may be public, but belongs to its owner.
        host_names=(*several(flags.host_name), gethostname()),
        max_requests=flags.max_requests,
        access=Access.of(client),
        machine=None if own_machine is None else own_machine(),
    )
    asked = {"initial_peers": peers_of(link, initial_peers), "listen": True, **client}
    with (
        telling(log_format, as_json=as_json, sentences=SENTENCES) as emit,
        listening(host, port) as listener,
    ):
        if not keys and not is_loopback(host):
            emit("open", {"host": host})
        run_until_stopped(lambda stop: serve_gateway(listener, host, asked, options, emit, stop))


def model_name(target: str) -> str:
    """Return the model name of requests: that of the folder or file, or NAME without its digest.

    Raises `UsageError`.
    """
    from cosine_p2p.text.target import parse_target

    path = Path(target).expanduser()
    return path.resolve().name if path.exists() else parse_target(target)[0]


def is_loopback(host: str) -> bool:
    """True if an address is reachable from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
