"""An in-memory network whose nodes only answer status requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_lab.emulation.memory_transport import MemoryNetwork, MemoryTransport
from cosine_node.serving.status_service import StatusService
from cosine_p2p.directory.directory import Directory
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.transport.base import StreamHandler
from cosine_p2p.trust.mandates import Mandates
from cosine_protocol.discover import STATUS
from cosine_protocol.records import NodeRecord
from tests.cosine_p2p.samples import identity_of, record_of

ONE_WAY_S = 0.02


@dataclass(slots=True)
class PlainSwarm:
    """Implements `cosine_p2p.client.Swarm`; no text is read."""

    network: MemoryNetwork = field(default_factory=lambda: MemoryNetwork(one_way_s=ONE_WAY_S))
    directory: Directory = field(default_factory=MemoryDirectory)
    transport: MemoryTransport = field(init=False)
    mandates: Mandates | None = None

    def __post_init__(self) -> None:
        self.transport = self.network.join("client")

    async def text_codec(self, verifiers: Sequence[NodeRecord]) -> TextTokenizer:
        raise NotImplementedError

    def choose_digest(self, name: str, offered: Mapping[bytes, int]) -> bytes:
        raise NotImplementedError

    async def close(self) -> None:
        await self.transport.close()

    async def announce(self, number: int, handler: StreamHandler | None = None, **record: Any) -> NodeRecord:
        """Add a node to the directory; without a handler it cannot be reached."""
        identity = identity_of(number)
        announced = record_of(identity, now_s=0.0, **record)
        await self.directory.announce(announced, [announced.target])
        if handler is not None:
            await self.network.join(identity.peer_id).serve(STATUS, handler)
        return announced


def account(requests: int = 2, passes: int = 30) -> StreamHandler:
    return StatusService(lambda: (b"", requests, passes)).handle
