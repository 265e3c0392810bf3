"""What the drafters of a simulated swarm are sent, and drafters of older versions in it."""

from typing import Any, Final

import pytest

from cosine_node.drafter.service import DrafterService
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serve_channel
from cosine_protocol import messages as m
from cosine_protocol.codec import FrameDecoder, decode, encode, encode_frame
from cosine_protocol.identity import Identity
from cosine_protocol.protocols import DRAFT, MANDATES

OLD_FEATURES: Final = (MANDATES,)
"""Those of peers that know no windows of prompts and nothing of learning."""


class OldStream:
    """A stream of a peer of an older version."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._decoder = FrameDecoder()
        self.peer_id = stream.peer_id
        self.read, self.close, self.note_flood = stream.read, stream.close, stream.note_flood

    async def write(self, data: bytes) -> None:
        frames = []
        for message in map(decode, self._decoder.feed(data)):
            if isinstance(message, m.Hello):
                message = m.Hello(message.version, OLD_FEATURES, message.agent)
            frames.append(encode_frame(encode(message)))
        await self._stream.write(b"".join(frames))


class Eavesdroppers:
    """What drafters and strangers were sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[m.Message] = []
        self.told_old: list[m.Message] = []
        receive = DrafterService._receive

        def note(service: DrafterService, channel: Channel, message: m.Message) -> None:
            self.told.append(message)
            receive(service, channel, message)

        monkeypatch.setattr(DrafterService, "_receive", note)

    def old_drafter(self, identity: Identity) -> Any:
        async def handle(stream: Stream) -> None:
            await serve_channel(OldStream(stream), DRAFT, lambda _, message: self.told_old.append(message))

        return handle

    @property
    def starts(self) -> list[m.Start]:
        return [message for message in self.told if isinstance(message, m.Start)]

    @property
    def old_starts(self) -> list[m.Start]:
        return [message for message in self.told_old if isinstance(message, m.Start)]
