"""A model that nodes of the swarm hold, and fetching a part of it."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from cosine_engine.models.hub_source import HubSource
from cosine_engine.models.partial_folder import PartialFolder, weights_folder
from cosine_node.weights.fetching import FetchProgress, SourcePlace, WeightsFetch
from cosine_node.weights.peer_source import PeerSource
from cosine_p2p.directory.directory import Directory
from cosine_p2p.text.held_weights import MANIFEST, HeldWeights, read_manifest
from cosine_p2p.text.target import choose_digest, parse_target
from cosine_p2p.text.tokenizer_files import parse_digest
from cosine_p2p.transport.base import Transport
from cosine_protocol.errors import CosineError, PeerError, PeerLost, RemoteProtocolError, UsageError
from cosine_protocol.records import NodeRecord, Role

LOG = logging.getLogger(__name__)
WAIT_S: Final = 2.0
"""Interval of look-ups while no node has the model."""


@dataclass(frozen=True, slots=True)
class SoughtModel:
    """A model as `--model` names it, by a name, a target digest, or both as `NAME@DIGEST`."""

    name: str
    digest: bytes | None

    @classmethod
    def parse(cls, text: str) -> "SoughtModel":
        """Raises `UsageError` if the part after the @ is not a digest in hex."""
        try:
            digest = parse_digest(text)
            return cls(digest.hex(), digest)
        except ValueError:
            return cls(*parse_target(text))

    @property
    def key(self) -> str:
        """The name for look-ups of its nodes."""
        return self.name if self.digest is None else self.digest.hex()


class SwarmModel:
    """A model that nodes of the swarm hold, known by its target digest and its content digest."""

    def __init__(
        self,
        transport: Transport,
        directory: Directory,
        *,
        target_digest: bytes,
        content_digest: bytes,
        hub: HubSource | None = None,
        cache_folder: Path | None = None,
    ) -> None:
        self._transport = transport
        self._directory = directory
        self.target_digest = target_digest
        self._content_digest = content_digest
        self._hub = hub
        self._cache_folder = cache_folder

    @classmethod
    async def find(
        cls,
        transport: Transport,
        directory: Directory,
        sought: SoughtModel,
        *,
        hub: HubSource | None = None,
        cache_folder: Path | None = None,
        choose: Callable[[str, dict[bytes, int]], bytes] = choose_digest,
    ) -> "SwarmModel | None":
        """The model as verifiers and stages announce it. None if none does.

        `choose` selects one of several models of a name; its exceptions are raised.
        """
        records = await _holders(directory, sought.key)
        offered = {record.target_digest: record.content_digest for record in records}
        chosen = sought.digest
        if chosen is None and offered:
            chosen = choose(sought.name, dict(Counter(record.target_digest for record in records)))
        if chosen is None or chosen not in offered:
            return None
        return cls(
            transport,
            directory,
            target_digest=chosen,
            content_digest=offered[chosen],
            hub=hub,
            cache_folder=cache_folder,
        )

    async def folder(self) -> PartialFolder | None:
        """The model's folder with its small files and the tensors on this machine. None if no source has the files.

        Raises `UsageError` for a model that cannot be held in parts, and if the disk is full.
        """
        kept = weights_folder(self._content_digest, cache_folder=self._cache_folder) / MANIFEST
        if kept.is_file():
            manifest, encoded = read_manifest(kept)
            return PartialFolder(manifest, encoded, cache_folder=self._cache_folder)
        for place in await self._places():
            if place.name == getattr(self._hub, "name", None):
                continue
            try:
                async with PeerSource.opened(self._transport, place.name, self._content_digest) as source:
                    manifest, encoded = await source.manifest()
                    found = PartialFolder(manifest, encoded, cache_folder=self._cache_folder)
                    await asyncio.to_thread(found.write_parts, await source.parts(manifest))
                    return found
            except (PeerLost, PeerError, RemoteProtocolError) as error:
                LOG.info("%s gives no manifest: %s", place.name, error)
            except OSError as error:
                raise UsageError(f"The cache cannot be written ({error}).") from None
        return None

    async def fetch(
        self, folder: PartialFolder, wanted: Collection[int], *, what: str, tell: Callable[[FetchProgress], None]
    ) -> HeldWeights:
        """Fetch the tensors of these rows, and check the whole folder. Raises `UsageError` if the disk fails."""
        await WeightsFetch(folder, wanted, what=what, tell=tell).run(self._places)
        return await asyncio.to_thread(HeldWeights.read, folder.path)

    async def _places(self) -> Sequence[SourcePlace]:
        """The present sources: nodes that announce the model, and the hub."""
        records = await _holders(self._directory, self.target_digest.hex())
        peers = [
            record.peer_id
            for record in records
            if record.content_digest == self._content_digest and record.peer_id != self._transport.peer_id
        ]
        places = [
            SourcePlace(peer, partial(PeerSource.opened, self._transport, peer, self._content_digest))
            for peer in dict.fromkeys(peers)
        ]
        hub = self._hub
        return places if hub is None else [*places, SourcePlace(hub.name, lambda: nullcontext(hub))]


async def _holders(directory: Directory, key: str) -> list[NodeRecord]:
    found: list[NodeRecord] = []
    for role in (Role.STAGE, Role.VERIFIER):
        try:
            found += await directory.find(role, key)
        except CosineError as error:
            LOG.info("no %ss were looked up: %s", role, error)
    return found
