"""The page of `join --page`: a gateway on the loopback interface with a separate client."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from socket import gethostname
from typing import Final

from cosine_cli.serve import model_name
from cosine_p2p.access import Access
from cosine_p2p.storage.identity_file import default_identity_file, load_identity
from cosine_protocol.errors import CosineError, UsageError
from cosine_terminal.events import Emit

LOG = logging.getLogger(__name__)
PAGE_HOST: Final = "127.0.0.1"
"""The address of a node's page. To show it to others, run `cosine serve`, which has API keys."""


def page_access(access: Access) -> Access:
    """The access of the page's client. Raises `UsageError` if it is not a member of the private swarm.

    In a private swarm it has a separate identity, so that peers do not mistake it for the node.
    """
    if access.swarm_file is None:
        return access
    file = default_identity_file().with_name("page-identity")
    try:
        access.gate(load_identity(file).peer_id)
    except UsageError as error:
        raise UsageError(f"The page has a separate key, {file}: {error}") from None
    return replace(access, identity_file=file)


async def run_with_page(
    run: Callable[[Emit], Awaitable[None]],
    listener: socket.socket,
    *,
    access: Access,
    target: str,
    emit: Emit,
    stop: asyncio.Event,
) -> None:
    """Run a node and, once it is ready, serve the page on the listening socket.

    If the page cannot be served, a warning is logged and the node continues.
    """
    addresses: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    def note(event: str, fields: dict[str, object]) -> None:
        emit(event, fields)
        maddrs = fields.get("maddrs")
        if event == "ready" and isinstance(maddrs, list) and not addresses.done():
            addresses.set_result(maddrs)

    async def show() -> None:
        try:
            await _serve_page(listener, await addresses, access=access, target=target, emit=emit, stop=stop)
        except CosineError as error:
            LOG.warning("the page cannot be shown: %s", error)

    showing = asyncio.ensure_future(show())
    try:
        await run(note)
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
        listener.close()


async def _serve_page(
    listener: socket.socket,
    addresses: list[str],
    *,
    access: Access,
    target: str,
    emit: Emit,
    stop: asyncio.Event,
) -> None:
    from cosine_gateway.http.app import GatewayOptions
    from cosine_gateway.http.server import serve_gateway
    from cosine_node.advice.own_machine import OwnMachine
    from cosine_p2p.network import joining
    from cosine_p2p.text.target import Target

    def note(event: str, fields: dict[str, object]) -> None:
        # Other events of the gateway do not concern the node.
        if event == "ready":
            emit("page", {"url": fields["url"]})

    join = joining(addresses, access=access, tokenizer_folder=Target.parse(target).folder)
    options = GatewayOptions(
        model_name=model_name(target), host_names=(gethostname(),), access=access, machine=OwnMachine()
    )
    await serve_gateway(listener, PAGE_HOST, {"join": join, "target": target}, options, note, stop)
