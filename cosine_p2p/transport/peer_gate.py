"""Decides which peers a transport talks to: members of a private swarm, and nobody denied.

Between members each stream begins with a `Member` message both ways (docs/protocol.md, section 3). The dialler
shows its certificate first: a node of a private swarm answers anybody else with one error alone.
"""

import asyncio
import logging
from typing import Final

from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import MAX_SENTENCE
from cosine_p2p.trust.denied_peers import DeniedPeers
from cosine_p2p.trust.membership import Membership
from cosine_protocol import limits
from cosine_protocol import messages as m
from cosine_protocol.codec import HEADER_BYTES, decode, encode, encode_frame, frame_at
from cosine_protocol.errors import ErrorCode, NotAMember, PeerLost, RemoteProtocolError

logger = logging.getLogger(__name__)

GREETING_S: Final = 4.0  # As long as a stream may be silent later.
LINGER_S: Final = 2.0  # The answer needs one way, and the peer's hanging up another.


class PeerGate:
    """Lets through whom `membership` and `denied` allow; without them anybody."""

    def __init__(self, membership: Membership | None = None, denied: DeniedPeers | None = None) -> None:
        self.membership = membership
        self._denied = denied

    @property
    def certificate(self) -> bytes:
        """Our own certificate, empty outside private swarms."""
        return self.membership.certificate if self.membership is not None else b""

    def check_denied(self, peer_id: str) -> None:
        """Raises `NotAMember` for a peer that is denied."""
        if self._denied is not None and peer_id in self._denied:
            raise NotAMember("it is denied")

    def note_disconnected(self, peer_id: str) -> None:
        """Count a disconnection for a flood, which leads to a ban."""
        if self._denied is not None:
            self._denied.note_disconnected(peer_id)

    def check(self, peer_id: str, certificate: bytes) -> None:
        """Raises `NotAMember` unless a peer with this certificate may be talked to."""
        self.check_denied(peer_id)
        if self.membership is not None:
            self.membership.check(certificate, peer_id=peer_id)

    def check_met(self, peer_id: str) -> None:
        """Raises `NotAMember` unless a peer that has passed before may still be talked to."""
        self.check_denied(peer_id)
        if self.membership is not None:
            self.membership.check_met(peer_id)

    def check_dial(self, peer_id: str) -> None:
        """Raises `PeerLost` for a peer that is not to be dialled."""
        try:
            self.check_denied(peer_id)
        except NotAMember as refused:
            raise PeerLost(peer_id, f"it is not talked to: {refused}") from None

    async def enter(self, stream: Stream) -> Stream:
        """A stream that we dialled, once its peer may be talked to. Raises `PeerLost`, having closed the stream."""
        if self.membership is None and self._denied is None:
            return stream
        peer_id = stream.peer_id
        greeting = _Greeting(stream)
        try:
            async with asyncio.timeout(GREETING_S):
                self.check_denied(peer_id)
                if self.membership is not None:
                    told = await greeting.present(self.membership)
                    theirs = self._checked(await greeting.receive(), peer_id)
                    await self._exchange_lists(greeting, self.membership, told, theirs)
        except TimeoutError:
            stream.close()
            raise PeerLost(peer_id, f"it showed no membership within {GREETING_S:g} s") from None
        except (NotAMember, RemoteProtocolError) as refused:
            stream.close()
            raise PeerLost(peer_id, f"it is not talked to: {refused}") from None
        except BaseException:
            stream.close()
            raise
        return GatedStream(stream, self, bytes(greeting.rest))

    async def admit(self, stream: Stream) -> Stream | None:
        """A stream that a peer dialled; None if it was refused with one error."""
        if self.membership is None and self._denied is None:
            return stream
        greeting = _Greeting(stream)
        try:
            async with asyncio.timeout(GREETING_S):
                self.check_denied(stream.peer_id)
                if self.membership is not None:
                    theirs = self._checked(await greeting.receive(), stream.peer_id)
                    told = await greeting.present(self.membership)
                    await self._exchange_lists(greeting, self.membership, told, theirs)
        except RemoteProtocolError as refused:
            await refuse(stream, str(refused))
            return None
        except (PeerLost, TimeoutError):
            stream.close()
            return None
        return GatedStream(stream, self, bytes(greeting.rest))

    def _checked(self, message: m.Message, peer_id: str) -> m.Member:
        """Raises `NotAMember`."""
        if isinstance(message, m.Error):
            raise NotAMember(f"it does not admit us: {message.message}")
        if not isinstance(message, m.Member):
            raise NotAMember("no certificate was shown")
        self.check(peer_id, message.certificate)
        return message

    async def _exchange_lists(self, greeting: "_Greeting", ours: Membership, told: int, theirs: m.Member) -> None:
        """Send the newer list of revoked certificates; `told`: our sequence. Raises `NotAMember`."""
        if theirs.revocations < told:
            await greeting.send(m.Revoked(ours.revocations))
        elif theirs.revocations > told:
            newer = await greeting.receive()
            if not isinstance(newer, m.Revoked):
                raise NotAMember("the list of revoked certificates that it knows did not come")
            ours.take_revocations(newer.revocations)
            self.check_met(greeting.peer_id)


class GatedStream:
    """A stream whose peer is checked whenever it says something: certificates expire."""

    def __init__(self, stream: Stream, gate: PeerGate, rest: bytes) -> None:
        self.peer_id = stream.peer_id
        self._stream = stream
        self._gate = gate
        self._rest = rest

    async def read(self) -> bytes:
        data, self._rest = self._rest, b""
        data = data or await self._stream.read()
        try:
            if data:
                self._gate.check_met(self.peer_id)
        except NotAMember as refused:
            await refuse(self._stream, str(refused))
            return b""
        return data

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)

    def close(self) -> None:
        self._stream.close()

    def note_flood(self) -> None:
        self._gate.note_disconnected(self.peer_id)


async def refuse(stream: Stream, reason: str) -> None:
    """Answer with an error, and end once the peer hangs up: a stream closed at once would lose the answer."""
    try:
        message = f"this peer talks to members of its private swarm, and to nobody it denies: {reason}"
        async with asyncio.timeout(LINGER_S):
            error = m.Error(0, ErrorCode.NOT_ADMITTED, message[:MAX_SENTENCE], None)
            await stream.write(encode_frame(encode(error)))
            while await stream.read():
                pass
    except (PeerLost, TimeoutError):
        logger.debug("%s was refused and did not hang up", stream.peer_id)
    stream.close()


class _Greeting:
    """The frames of a stream before its hello; `rest` is what came after them."""

    def __init__(self, stream: Stream) -> None:
        self.peer_id = stream.peer_id
        self.rest = bytearray()
        self._stream = stream

    async def present(self, membership: Membership) -> int:
        """Show our certificate; the sequence of revocations that was named."""
        told = membership.sequence
        await self.send(m.Member(membership.certificate, told))
        return told

    async def send(self, message: m.Member | m.Revoked) -> None:
        await self._stream.write(encode_frame(encode(message)))

    async def receive(self) -> m.Message:
        """Raises `PeerLost`, and `RemoteProtocolError` for what is no message."""
        # The longest frame before the hello is a list of revoked certificates.
        while (body := frame_at(self.rest, max_bytes=limits.MAX_REVOCATIONS_BYTES + 16)) is None:
            data = await self._stream.read()
            if not data:
                raise PeerLost(self.peer_id, "the stream ended before it showed a membership")
            self.rest += data
        del self.rest[: HEADER_BYTES + len(body)]
        return decode(body)
