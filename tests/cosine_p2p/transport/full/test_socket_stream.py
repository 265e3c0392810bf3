"""A stream over a Unix socket: bytes both ways, and an end that neither side can hang on."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from cosine_p2p.transport.full.sockets import SocketStream
from cosine_protocol.errors import PeerLost


def with_stream(use: Callable[[SocketStream, socket.socket, list[SocketStream]], Awaitable[None]]) -> None:
    """Call `use` with a stream, the other end of its socket, and the list of streams that were closed."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        closed: list[SocketStream] = []
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        stream = SocketStream("peer", reader, writer, closed.append)
        try:
            await use(stream, theirs, closed)
        finally:
            stream.close()
            theirs.close()
            await asyncio.sleep(0)

    asyncio.run(run())


def test_bytes_pass_both_ways() -> None:
    async def use(stream: SocketStream, other: socket.socket, _: list[SocketStream]) -> None:
        other.send(b"there")
        assert await stream.read() == b"there"
        await stream.write(b"and back")
        assert other.recv(100) == b"and back"

    with_stream(use)


def test_the_peers_end_is_an_empty_read_and_closes_once() -> None:
    async def use(stream: SocketStream, other: socket.socket, closed: list[SocketStream]) -> None:
        other.close()
        assert await stream.read() == b"" == await stream.read()
        stream.close()
        assert closed == [stream]

    with_stream(use)


def test_a_closed_stream_takes_nothing() -> None:
    async def use(stream: SocketStream, other: socket.socket, closed: list[SocketStream]) -> None:
        stream.abort()
        with pytest.raises(PeerLost, match="the stream is closed"):
            await stream.write(b"more")
        assert closed == [stream]

    with_stream(use)
