"""The tokenizer of a client's target, loaded once and early from a folder, the cache, or a verifier."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerCache, TokenizerFiles, fetch_tokenizer_files
from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.patience import end_all
from cosine_protocol.errors import (
    CosineError,
    GenerationFailed,
    PeerError,
    PeerLost,
    RemoteProtocolError,
    UsageError,
)
from cosine_protocol.records import NodeRecord

logger = logging.getLogger(__name__)


class TokenizerLoads:
    """Loads tokenizers, also one in advance. With `folder` only from there."""

    def __init__(self, folder: Path | None, *, cache: TokenizerCache | None = None) -> None:
        self._folder = folder
        self._cache = cache or TokenizerCache()
        # For the client's target; another digest replaces it.
        self._loads: dict[bytes, asyncio.Task[TextTokenizer]] = {}

    def begin(self, digest: bytes, *, transport: Transport | None = None, peer_id: str = "") -> None:
        """Start to load a tokenizer, from a peer if needed, unless one is loaded or in progress."""
        if not self._loads:
            task = asyncio.ensure_future(self._load(digest, transport, (peer_id,)))
            self._loads[digest] = task
            # It may never be used.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def of(self, verifiers: Sequence[NodeRecord], transport: Transport) -> TextTokenizer:
        """Return the tokenizer. Raises `UsageError` if the folder has another one, and `GenerationFailed`."""
        digest = verifiers[0].tokenizer_digest
        begun = self._loads.get(digest)
        if begun is not None:
            try:
                return await asyncio.shield(begun)
            except CosineError as error:
                logger.debug("a tokenizer is loaded again: %s", error)
        peer_ids = tuple(record.peer_id for record in verifiers)
        load = asyncio.ensure_future(self._load(digest, transport, peer_ids))
        for other in self._loads.values():
            other.cancel()
        self._loads = {digest: load}
        return await asyncio.shield(load)

    async def close(self) -> None:
        await end_all(self._loads.values())

    async def _load(self, digest: bytes, transport: Transport | None, peer_ids: Sequence[str]) -> TextTokenizer:
        if self._folder is not None:
            files = await asyncio.to_thread(_local_files, self._folder, digest)
        else:
            cached = await asyncio.to_thread(self._cache.get, digest)
            files = cached or await self._fetched(digest, transport, peer_ids)
            if cached is None:
                try:
                    self._cache.put(files)
                except OSError as error:
                    logger.warning("%s: the tokenizer is not cached", error)
        return await asyncio.to_thread(TextTokenizer, files.files)

    async def _fetched(self, digest: bytes, transport: Transport | None, peer_ids: Sequence[str]) -> TokenizerFiles:
        tried: list[str] = []
        for peer_id in peer_ids:
            if transport is None:
                break
            try:
                return await fetch_tokenizer_files(transport, peer_id, digest)
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
