"""A client's way into a network: a dial-only hivemind peer with an identity of its own for each run."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from cosine_p2p.keys import load_identity
from cosine_p2p.target import choose_digest
from cosine_p2p.tokenizer import TextCodec
from cosine_p2p.tokenizer_files import TokenizerCache, TokenizerFiles, fetch_tokenizer_files
from cosine_p2p.transport.config import DEFAULT_NETWORK, TransportConfig
from cosine_protocol.errors import GenerationFailed, PeerError, PeerLost, RemoteProtocolError, UsageError
from cosine_protocol.records import NodeRecord

if TYPE_CHECKING:
    from cosine_p2p.directory import Directory
    from cosine_p2p.transport.hivemind import HivemindTransport

DIAL_TIMEOUT_S = 4.0

__all__ = ["DEFAULT_NETWORK", "NetworkSwarm", "joining"]


class NetworkSwarm:
    """Implements `cosine_p2p.client.Swarm` on the real network."""

    def __init__(
        self,
        transport: "HivemindTransport",
        directory: "Directory",
        identity_folder: "tempfile.TemporaryDirectory[str]",
        tokenizer_folder: Path | None,
    ) -> None:
        self.transport = transport
        self.directory = directory
        self._identity_folder = identity_folder
        self._tokenizer_folder = tokenizer_folder
        self._codec: TextCodec | None = None

    @classmethod
    async def join(
        cls, initial_peers: Sequence[str], *, network: str, tokenizer_folder: Path | None
    ) -> "NetworkSwarm":
        """Connect. Raises `UsageError` for malformed addresses, `PeerLost` if no initial peer answers."""
        if find_spec("hivemind") is None:
            raise UsageError("This installation has no network transport; install cosine-p2p[node].")
        from cosine_p2p.dht import DhtDirectory
        from cosine_p2p.transport.hivemind import HivemindTransport

        folder = tempfile.TemporaryDirectory(prefix="cosine-client-")
        identity_file = Path(folder.name) / "identity"
        identity = load_identity(identity_file)
        config = TransportConfig(
            identity_file=identity_file,
            network=network,
            initial_peers=tuple(initial_peers),
            client_mode=True,
            dial_timeout_s=DIAL_TIMEOUT_S,
        )
        try:
            transport = await HivemindTransport.start(config)
        except BaseException:
            folder.cleanup()
            raise
        directory = DhtDirectory(transport, identity, network=network, opener=transport.opener)
        return cls(transport, directory, folder, tokenizer_folder)

    async def text_codec(self, verifiers: Sequence[NodeRecord]) -> TextCodec:
        if self._codec is None:
            files = await self._tokenizer_files(verifiers)
            self._codec = await asyncio.to_thread(TextCodec, files.files)
        return self._codec

    def choose_digest(self, name: str, offered: Sequence[bytes]) -> bytes:
        """Trust on first use: the first digest seen for a name on this machine is pinned."""
        return choose_digest(name, offered)

    async def close(self) -> None:
        await self.transport.close()
        self._identity_folder.cleanup()

    async def _tokenizer_files(self, verifiers: Sequence[NodeRecord]) -> TokenizerFiles:
        digest = verifiers[0].tokenizer_digest
        if self._tokenizer_folder is not None:
            return _local_files(self._tokenizer_folder, digest)
        tried = []
        for record in verifiers:
            try:
                return await fetch_tokenizer_files(self.transport, record.peer_id, digest, cache=TokenizerCache())
            except (PeerLost, PeerError, RemoteProtocolError) as error:
                tried.append(str(error))
        raise GenerationFailed(f"No verifier gave the target's tokenizer. Tried: {'; '.join(tried)}.")


def _local_files(folder: Path, digest: bytes) -> TokenizerFiles:
    files = TokenizerFiles.read(folder)
    if files is None:
        raise UsageError(f"{folder} holds no tokenizer; name the target by the name its verifiers announce.")
    if files.digest != digest:
        raise UsageError(
            f"The tokenizer in {folder} is not the one the verifiers of this target announce "
            f"({files.digest.hex()[:16]} here, {digest.hex()[:16]} there); fetch the same model again."
        )
    return files


def joining(
    initial_peers: Sequence[str], *, network: str, tokenizer_folder: Path | None = None
) -> Callable[[], Awaitable[NetworkSwarm]]:
    """What `AsyncClient` calls to join. Raises `UsageError` if there is nobody to ask."""
    if not initial_peers:
        raise UsageError(
            "No initial peers: give the address of at least one node of the network with --initial-peers "
            "(nodes print theirs when they are ready)."
        )

    async def join() -> NetworkSwarm:
        return await NetworkSwarm.join(initial_peers, network=network, tokenizer_folder=tokenizer_folder)

    return join
