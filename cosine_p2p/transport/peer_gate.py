"""Decides which peers a transport talks to: members of a private swarm, and no denied peers.

Between members each stream begins with a `Member` message in both directions (docs/protocol.md, section 3). The
dialler sends its certificate first: a node of a private swarm answers other peers with a single error.
"""

import asyncio
import logging
from typing import Final

from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import MAX_SENTENCE
from cosine_p2p.trust.denied_peers import DeniedPeers
from cosine_p2p.trust.membership import Membership
from cosine_protocol.codec import HEADER_BYTES, Message, decode, encode, encode_frame, frame_at
from cosine_protocol.errors import ErrorCode, NotAMember, PeerLost, RemoteProtocolError
from cosine_protocol.membership import MAX_REVOCATIONS_BYTES, Member, Revoked
from cosine_protocol.stream import Error

logger = logging.getLogger(__name__)

GREETING_S: Final = 4.0  # The same as the timeout of a silent stream.
LINGER_S: Final = 2.0  # Time for the error to arrive and for the peer to close the stream.


class PeerGate:
    """Admits the peers that `membership` and `denied` allow; without both every peer."""

    def __init__(self, membership: Membership | None = None, denied: DeniedPeers | None = None) -> None:
        self.membership = membership
        self._denied = denied

    @property
    def certificate(self) -> bytes:
        """Our certificate; empty outside private swarms."""
        return self.membership.certificate if self.membership is not None else b""

    def check_denied(self, peer_id: str) -> None:
        """Raise `NotAMember` if a peer is denied."""
        if self._denied is not None and peer_id in self._denied:
            raise NotAMember("it is denied")

    def note_disconnected(self, peer_id: str) -> None:
        """Count a disconnection of a flooding peer; several lead to a ban."""
        if self._denied is not None:
            self._denied.note_disconnected(peer_id)

    def check(self, peer_id: str, certificate: bytes) -> None:
        """Raise `NotAMember` unless a peer with this certificate is admitted."""
        self.check_denied(peer_id)
        if self.membership is not None:
            self.membership.check(certificate, peer_id=peer_id)

    def check_met(self, peer_id: str) -> None:
        """Raise `NotAMember` unless a peer that was admitted before still is."""
        self.check_denied(peer_id)
        if self.membership is not None:
            self.membership.check_met(peer_id)

    def check_dial(self, peer_id: str) -> None:
        """Raise `PeerLost` if a peer is denied."""
        try:
            self.check_denied(peer_id)
        except NotAMember as refused:
            raise PeerLost(peer_id, f"it is not talked to: {refused}") from None

    async def enter(self, stream: Stream) -> Stream:
        """Return a stream that we dialled once its peer is admitted. Closes it and raises `PeerLost` otherwise."""
        if self.membership is None and self._denied is None:
            return stream
        try:
            return await self._greet(stream, is_dialler=True)
        except TimeoutError:
            stream.close()
            raise PeerLost(stream.peer_id, f"it showed no membership within {GREETING_S:g} s") from None
        except RemoteProtocolError as refused:
            stream.close()
            raise PeerLost(stream.peer_id, f"it is not talked to: {refused}") from None
        except BaseException:
            stream.close()
            raise

    async def admit(self, stream: Stream) -> Stream | None:
        """Return a stream that a peer dialled; None if it was refused with a single error."""
        if self.membership is None and self._denied is None:
            return stream
        try:
            return await self._greet(stream, is_dialler=False)
        except RemoteProtocolError as refused:
            await refuse(stream, str(refused))
            return None
        except (PeerLost, TimeoutError):
            stream.close()
            return None

    async def _greet(self, stream: Stream, *, is_dialler: bool) -> Stream:
        """Exchange certificates and the newer list of revoked ones. Raises `NotAMember`, `TimeoutError`."""
        greeting, ours = _Greeting(stream), self.membership
        async with asyncio.timeout(GREETING_S):
            self.check_denied(stream.peer_id)
            if ours is None:
                return GatedStream(stream, self, b"")
            told = await greeting.present(ours) if is_dialler else None
            theirs = await greeting.receive()
            if isinstance(theirs, Error):
                raise NotAMember(f"it does not admit us: {theirs.message}")
            if not isinstance(theirs, Member):
                raise NotAMember("no certificate was shown")
            self.check(stream.peer_id, theirs.certificate)
            if told is None:
                told = await greeting.present(ours)
            if theirs.revocations < told:
                await greeting.send(Revoked(ours.revocations))
            elif theirs.revocations > told:
                newer = await greeting.receive()
                if not isinstance(newer, Revoked):
                    raise NotAMember("it did not send its list of revoked certificates")
                ours.take_revocations(newer.revocations)
                self.check_met(stream.peer_id)
        return GatedStream(stream, self, bytes(greeting.rest))


class GatedStream:
    """A stream whose peer is checked at each read, since certificates expire."""

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
    """Send an error, and close once the peer has closed: a stream closed at once would lose the error."""
    try:
        message = f"this peer admits only members of its private swarm, and no denied peers: {reason}"
        async with asyncio.timeout(LINGER_S):
            error = Error(0, ErrorCode.NOT_ADMITTED, message[:MAX_SENTENCE], None)
            await stream.write(encode_frame(encode(error)))
            while await stream.read():
                pass
    except (PeerLost, TimeoutError):
        logger.debug("%s was refused and did not hang up", stream.peer_id)
    stream.close()


class _Greeting:
    """The frames of a stream before its hello; `rest` are the bytes after them."""

    def __init__(self, stream: Stream) -> None:
        self.peer_id = stream.peer_id
        self.rest = bytearray()
        self._stream = stream

    async def present(self, membership: Membership) -> int:
        """Send our certificate, and return the sequence of our revocations."""
        told = membership.sequence
        await self.send(Member(membership.certificate, told))
        return told

    async def send(self, message: Member | Revoked) -> None:
        await self._stream.write(encode_frame(encode(message)))

    async def receive(self) -> Message:
        """The next message. Raises `PeerLost`, and `RemoteProtocolError` for a malformed frame."""
        # The longest frame before the hello is a list of revoked certificates.
        while (body := frame_at(self.rest, max_bytes=MAX_REVOCATIONS_BYTES + 16)) is None:
            data = await self._stream.read()
            if not data:
                raise PeerLost(self.peer_id, "the stream ended before it showed a membership")
            self.rest += data
        del self.rest[: HEADER_BYTES + len(body)]
        return decode(body)
