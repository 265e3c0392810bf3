"""Questions of libp2p's protocols, answered by scripted streams."""

import asyncio

import pytest
from multiaddr import Multiaddr

from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.full.questions import (
    MAX_ANSWER_BYTES,
    ask_dial_back,
    ask_reservation,
    field,
    fields,
    varint,
)
from cosine_protocol.errors import PeerLost

PEER = "12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"
PLACE = "/ip4/203.0.114.1/tcp/4001"


class Answering:
    """A stream that answers with some pieces, and ends."""

    peer_id = PEER

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self.asked = b""

    async def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    async def write(self, data: bytes) -> None:
        self.asked += data

    def close(self) -> None:
        return

    def note_flood(self) -> None:
        return

    async def dial(self, peer_id: str, protocol: str) -> Stream:
        return self


def answering(message: bytes) -> Answering:
    whole = varint(len(message)) + message
    return Answering(whole[:3], whole[3:])


def number(key: int, value: int) -> bytes:
    return varint(key << 3) + varint(value)


def reserved(*, status: int = 100, limit: bytes = b"") -> bytes:
    return number(1, 2) + field(3, number(1, 9) + field(2, Multiaddr(PLACE).to_bytes())) + limit + number(5, status)


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (answering(reserved(status=201)), "it does not relay for us"),
        (answering(reserved(limit=field(4, number(2, 99)))), "it does not relay more than 99 bytes"),
        (answering(b"\xff"), "malformed"),
        (Answering(varint(1 << 30), bytes(MAX_ANSWER_BYTES), bytes(MAX_ANSWER_BYTES)), "did not answer"),
    ],
)
def test_a_peer_that_refuses_limits_or_floods_is_no_relay(stream: Answering, reason: str) -> None:
    with pytest.raises(PeerLost, match=reason):
        asyncio.run(ask_reservation(stream.dial, PEER, least_bytes=100, timeout_s=1.0))


def test_a_dial_back_reports_the_address_or_the_failure() -> None:
    came_in = field(3, number(1, 0) + field(3, Multiaddr(PLACE).to_bytes()))
    did_not, refused = (field(3, number(1, status)) for status in (100, 101))

    def ask(message: bytes) -> str | None:
        return asyncio.run(ask_dial_back(answering(message).dial, PEER, PEER, [PLACE], timeout_s=1.0))

    assert (ask(came_in), ask(did_not)) == (PLACE, None)
    with pytest.raises(PeerLost, match="did not try"):
        ask(refused)


@pytest.mark.parametrize("data", [b"\x80", b"\x0a\x05ab", b"\x0d\x01\x02\x03\x04", b"\x80" * 11])
def test_malformed_protobuf_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"end|unknown"):
        list(fields(data))
