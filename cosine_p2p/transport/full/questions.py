"""Requests of three libp2p protocols: circuit relay v2 (RESERVE), AutoNAT v1 (DIAL) and identify.

p2pd sends them too, but does not expose the answers, and after the loss of a relay does not ask again for an hour.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from multiaddr import Multiaddr

from cosine_p2p.transport.base import Stream
from cosine_protocol.errors import PeerLost
from cosine_protocol.identity import multihash_of

HOP: Final = "/libp2p/circuit/relay/0.2.0/hop"
AUTONAT: Final = "/libp2p/autonat/1.0.0"
IDENTIFY: Final = "/ipfs/id/1.0.0"
MAX_ANSWER_BYTES: Final = 16 << 10  # An identify message holds some dozen protocols and addresses.
QUESTION_S: Final = 2.0  # Timeout of a question over an existing connection: six round trips of 300 ms.
_RESERVE: Final = b"\x08\x00"  # type: RESERVE
_OK: Final = 100
NO_LIMIT: Final = 1 << 63  # Of a circuit; on the wire 0.
_DIALLED: Final = 0

Dial = Callable[[str, str], Awaitable[Stream]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """A peer's identify message: the address at which it sees us, and its own addresses."""

    seen_at: str
    maddrs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A relay's grant: its addresses, and the bytes that a circuit carries in each direction."""

    maddrs: tuple[str, ...]
    circuit_bytes: int


def varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data += bytes((value & 127 | 128,))
        value >>= 7
    return data + bytes((value,))


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the value that begins at `at`, and its end. Raises `ValueError`."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("a number has no end")


def field(number: int, data: bytes) -> bytes:
    """Encode a protobuf field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message of numbers and bytes. Raises `ValueError`."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        value, at = read_varint(data, at)
        if key & 7 == 0:
            yield key >> 3, value
        elif key & 7 == 2:
            if at + value > len(data):
                raise ValueError("a field has no end")
            yield key >> 3, data[at : at + value]
            at += value
        else:
            raise ValueError("a field of an unknown kind")


def maddr_of(value: int | bytes) -> str:
    """A multiaddr from its bytes. Raises `ValueError`."""
    try:
        return str(Multiaddr(value))
    except Exception as error:
        # The library raises different errors for each protocol.
        raise ValueError("no multiaddr") from error


def maddrs_in(data: bytes, number: int) -> tuple[str, ...]:
    """The multiaddrs in a repeated field, without unknown kinds. Raises `ValueError` for malformed fields."""
    found = []
    for key, value in fields(data):
        if key == number and isinstance(value, bytes):
            with suppress(ValueError):
                found.append(maddr_of(value))
    return tuple(found)


async def ask_reservation(dial: Dial, peer_id: str, *, least_bytes: int, timeout_s: float) -> Reservation:
    """Reserve a relay for an hour. Raises `PeerLost`, also for a limit below `least_bytes`."""
    answer = await ask(dial, peer_id, HOP, _RESERVE, timeout_s)
    return read_reservation(answer, peer_id, least_bytes=least_bytes)


def read_reservation(answer: bytes, peer_id: str, *, least_bytes: int) -> Reservation:
    try:
        by_number = dict(fields(answer))
        if (status := by_number.get(5)) != _OK:
            raise PeerLost(peer_id, f"it does not relay for us (status {status!r})")
        limit = by_number.get(4, b"")
        granted = dict(fields(limit)).get(2) if isinstance(limit, bytes) else None
        circuit_bytes = granted if isinstance(granted, int) and granted else NO_LIMIT
        if circuit_bytes < least_bytes:
            raise PeerLost(peer_id, f"it does not relay more than {circuit_bytes} bytes")
        reservation = by_number.get(3, b"")
        maddrs = maddrs_in(reservation, 2) if isinstance(reservation, bytes) else ()
        return Reservation(maddrs=maddrs, circuit_bytes=circuit_bytes)
    except ValueError as error:
        raise PeerLost(peer_id, f"its answer about relaying is malformed: {error}") from None


async def ask_dial_back(
    dial: Dial, peer_id: str, own_id: str, maddrs: Sequence[str], *, timeout_s: float
) -> str | None:
    """The address at which a peer just reached us, None if it failed. Raises `PeerLost` if it did not try."""
    plain = [Multiaddr(maddr.partition("/p2p/")[0]).to_bytes() for maddr in maddrs]
    info = field(1, multihash_of(own_id)) + b"".join(field(2, each) for each in plain)
    return read_dial_back(
        await ask(dial, peer_id, AUTONAT, b"\x08\x00" + field(2, field(1, info)), timeout_s), peer_id
    )


def read_dial_back(answer: bytes, peer_id: str) -> str | None:
    try:
        response = dict(fields(answer)).get(3, b"")
        told = dict(fields(response)) if isinstance(response, bytes) else {}
        status = told.get(1, _DIALLED)
        if status == _DIALLED and 3 in told:
            return maddr_of(told[3])
    except ValueError as error:
        raise PeerLost(peer_id, f"its answer about dialling is malformed: {error}") from None
    # E_DIAL_ERROR
    if status == 100:
        return None
    raise PeerLost(peer_id, f"it did not try to dial us (status {status!r})")


async def ask_identity(dial: Dial, peer_id: str, *, timeout_s: float) -> Identified:
    """Ask a peer to identify itself. Raises `PeerLost`."""
    return read_identity(await ask(dial, peer_id, IDENTIFY, b"", timeout_s), peer_id)


def read_identity(answer: bytes, peer_id: str) -> Identified:
    try:
        seen_at = dict(fields(answer)).get(4)
        return Identified(seen_at="" if seen_at is None else maddr_of(seen_at), maddrs=maddrs_in(answer, 2))
    except ValueError as error:
        raise PeerLost(peer_id, f"its identify message is malformed: {error}") from None


async def ask(dial: Dial, peer_id: str, protocol: str, question: bytes, timeout_s: float) -> bytes:
    """Send a question, unless it is empty, and return the answer. Raises `PeerLost`."""
    try:
        async with asyncio.timeout(timeout_s):
            stream = await dial(peer_id, protocol)
            try:
                if question:
                    await stream.write(message(question))
                return await read_message(stream)
            finally:
                stream.close()
    except TimeoutError:
        raise PeerLost(peer_id, f"no answer within {timeout_s:g} s") from None


def message(data: bytes) -> bytes:
    return varint(len(data)) + data


async def read_message(stream: Stream) -> bytes:
    """The first message on a stream. Raises `PeerLost`."""
    data = b""
    while len(data) <= MAX_ANSWER_BYTES and (more := await stream.read()):
        data += more
        try:
            length, at = read_varint(data, 0)
        except ValueError:
            continue
        if len(data) >= at + length:
            return data[at : at + length]
    raise PeerLost(stream.peer_id, "it did not answer")
