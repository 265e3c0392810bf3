"""The page of a demo's swarm after its races."""

import asyncio
import signal
import socket
import sys

from cosine_node.demo.swarm import Offer, Say

HOST = "127.0.0.1"


def offering(say: Say, *, model_name: str) -> Offer:
    """Return a function that serves the page until Enter or Ctrl-C."""

    async def offer(peer: str, target: str) -> None:
        from cosine_node.gateway.http.app import GatewayOptions
        from cosine_node.gateway.http.server import listening, serve_gateway

        def note(event: str, fields: dict[str, object]) -> None:
            if event == "ready":
                say(f"The swarm is still running, with a page at {fields['url']}/ ; press Enter to end it.")

        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(sys.stdin, stop.set)
        loop.add_signal_handler(signal.SIGINT, stop.set)
        try:
            options = GatewayOptions(model_name=model_name, host_names=(socket.gethostname(),))
            client = {"initial_peers": (peer,), "target": target}
            await serve_gateway(listening(HOST, 0), HOST, client, options, note, stop)
        finally:
            loop.remove_reader(sys.stdin)
            loop.remove_signal_handler(signal.SIGINT)

    return offer
