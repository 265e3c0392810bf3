"""`cosine serve`: the swarm behind OpenAI's and Anthropic's APIs."""

from ipaddress import ip_address
from pathlib import Path
from socket import gethostname
from typing import Annotated, Final

from cosine_p2p.access import Access
from cosine_p2p.request.options import KEEP, ClientOptions
from cosine_protocol.errors import UsageError
from cosine_terminal.events import telling
from cosine_terminal.interrupts import run_until_stopped
from cosine_terminal.options import (
    ENTRANCE,
    SERVED_BY,
    AsJson,
    InitialPeers,
    Link,
    LogFormat,
    option,
    peers_of,
    several,
    takes_options,
)

SENTENCES: Final = {
    "open": "Anybody who reaches {host} may generate; give an --api-key to change that.",
    "waiting": "Waiting for a verifier. {said}",
    "ready": "Serving {model} at {url}/v1, and a page at {url}/",
    "request": "{method} {path} {status} in {seconds} s, {id}",
    "stopped": "Stopped.",
}


@takes_options
def serve(
    client: Annotated[ClientOptions, (*ENTRANCE, *SERVED_BY)],
    host: Annotated[str, option("host", "HOST", "Address to listen on.", everyday=True)] = "127.0.0.1",
    # vLLM's port, so that clients configured for vLLM find the gateway.
    port: Annotated[int, option("port", "PORT", "Port to listen on; 0 is any free port.", everyday=True)] = 8000,
    link: Link = None,
    initial_peers: InitialPeers = None,
    max_requests: Annotated[
        int,
        option("max-requests", "COUNT", "Maximum number of concurrent generations; four times as many may wait."),
    ] = 16,
    api_key: Annotated[
        list[str] | None,
        option("api-key", "KEY", "API key that requests must send; may be repeated.", everyday=True),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        option("cors-origin", "ORIGIN", "Origin allowed by CORS, besides local ones; may be repeated."),
    ] = None,
    host_name: Annotated[
        list[str] | None,
        option(
            "host-name",
            "NAME",
            "Public host name of the gateway, besides private names and addresses; may be repeated.",
        ),
    ] = None,
    log_format: LogFormat = "pretty",
    as_json: AsJson = False,
) -> None:
    """Serve OpenAI's and Anthropic's APIs until interrupted.

    SIGTERM finishes running requests and exits 0.
    """
    from cosine_gateway.http.app import GatewayOptions
    from cosine_gateway.http.server import listening, serve_gateway
    from cosine_node.advice.own_machine import OwnMachine

    if not 0 <= port <= 65_535:
        raise UsageError("--port must lie between 0 and 65535.")
    if max_requests < 1:
        raise UsageError("--max-requests must be 1 or more.")
    keys = several(api_key)
    # A header cannot carry other keys, and an empty key would protect nothing.
    if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise UsageError("An --api-key must be printable ASCII without spaces, and not empty.")
    if len(keys) > 1 and client.get("past_replies") == KEEP:
        raise UsageError("--past-replies keep is for one user: speed would tell each key what others were told.")
    options = GatewayOptions(
        model_name="" if (target := client.get("target")) is None else model_name(target),
        api_keys=keys,
        cors_origins=several(cors_origin),
        # The machine's own name may be a public one, but belongs to its owner.
        host_names=(*several(host_name), gethostname()),
        max_requests=max_requests,
        access=Access.of(client),
        machine=OwnMachine(),
    )
    asked = {"initial_peers": peers_of(link, initial_peers), "listen": True, **client}
    with telling(log_format, as_json=as_json, sentences=SENTENCES) as emit, listening(host, port) as listener:
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
