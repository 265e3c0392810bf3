"""A py-libp2p host to dial in tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from cosine_p2p.transport.light.library import BaseLibp2pError, Ed25519PrivateKey, KeyPair
from cosine_p2p.transport.light.trio_thread import TrioThread
from cosine_protocol.identity import Identity

ECHO = "/test/echo"
WHO = "/test/who"
HOLD = "/test/hold"
HANG_UP = "/test/hang-up"


async def _echo(stream: Any) -> None:
    try:
        while data := await stream.read(65_536):
            await stream.write(data)
    except BaseLibp2pError:
        return


async def _who(stream: Any) -> None:
    await stream.write(str(stream.muxed_conn.peer_id).encode())
    await stream.close()


async def _hold(_: Any) -> None:
    await trio.sleep_forever()


async def _hang_up(stream: Any) -> None:
    await stream.muxed_conn.close()


_HANDLERS = {ECHO: _echo, WHO: _who, HOLD: _hold, HANG_UP: _hang_up}


class Server:
    """A running host: its `maddr`, and `run` for whatever a test wants it to do."""

    def __init__(self, identity: Identity, maddr: str, host: Any, thread: TrioThread) -> None:
        self.peer_id = identity.peer_id
        self.maddr = maddr
        self.host = host
        self._thread = thread

    async def run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Await `work(host)` in the host's trio loop."""
        return await self._thread.call(lambda: work(self.host))


@asynccontextmanager
async def serving(seed: bytes) -> AsyncIterator[Server]:
    """A host on loopback under the identity of a 32-byte seed."""
    from libp2p import new_host
    from libp2p.custom_types import TProtocol
    from multiaddr import Multiaddr

    key = Ed25519PrivateKey.from_bytes(seed)
    place = [Multiaddr("/ip4/127.0.0.1/tcp/0")]
    host = new_host(key_pair=KeyPair(key, key.get_public_key()), listen_addrs=place)
    for protocol, handler in _HANDLERS.items():
        host.set_stream_handler(TProtocol(protocol), handler)
    thread = await TrioThread.start("test-server")
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def live() -> None:
        async with host.run(listen_addrs=place):
            thread.post_back(listening.set_result, str(host.get_addrs()[0]))
            await trio.sleep_forever()

    living = asyncio.ensure_future(thread.call(live))
    try:
        yield Server(Identity.from_seed(seed), await listening, host, thread)
    finally:
        await thread.close()
        await asyncio.gather(living, return_exceptions=True)
