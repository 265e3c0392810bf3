"""Finding a model in the swarm by name or digest."""

from dataclasses import replace
from pathlib import Path

import pytest

from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_node.weights.service import WeightsService
from cosine_node.weights.swarm_model import SoughtModel, SwarmModel
from cosine_p2p.text.held_weights import HeldWeights
from cosine_protocol.records import Role
from cosine_protocol.weights import WEIGHTS
from tests.cosine_p2p.samples import identity_of, record_of
from tests.node.weights.models import Nodes, held, rows_of
from tests.scenes import in_real_time

NAME = "someone/model"
DIGEST = bytes(range(32))


class Swarm:
    def __init__(self, known: HeldWeights, cache: Path) -> None:
        self.nodes = Nodes(known)
        self.directory = MemoryDirectory()
        self._cache = cache

    async def add(self, number: int, served: HeldWeights) -> None:
        identity = identity_of(number)
        record = record_of(identity, now_s=0.0, role=Role.VERIFIER, target=NAME)
        record = replace(record, target_digest=DIGEST, content_digest=served.content_digest)
        await self.directory.announce(record, (NAME, DIGEST.hex()))
        await self.nodes.network.join(identity.peer_id).serve(WEIGHTS, WeightsService(served).handle)

    async def find(self, text: str) -> SwarmModel | None:
        return await SwarmModel.find(
            self.nodes.here,
            self.directory,
            SoughtModel.parse(text),
            cache_folder=self._cache,
            choose=lambda name, offered: max(offered, key=lambda digest: offered[digest]),
        )


@pytest.mark.parametrize("text", [NAME, DIGEST.hex(), f"{NAME}@{DIGEST.hex()}"])
@in_real_time
async def test_a_model_is_found_by_name_and_by_digest(known: HeldWeights, tmp_path: Path, text: str) -> None:
    swarm = Swarm(known, tmp_path)
    await swarm.add(1, known)
    found = await swarm.find(text)
    assert found is not None and found.target_digest == DIGEST
    folder = await found.folder()
    assert folder is not None
    await found.fetch(folder, rows_of(known, "layers.0."), what="a layer", tell=lambda progress: None)
    assert len(held(folder.path).tensors) == 2
    assert held(folder.path).content_digest == known.content_digest


@pytest.mark.parametrize("text", ["another/model", f"{NAME}@{bytes(32).hex()}", bytes(32).hex()])
@in_real_time
async def test_what_nobody_has_is_not_found(known: HeldWeights, tmp_path: Path, text: str) -> None:
    swarm = Swarm(known, tmp_path)
    await swarm.add(1, known)
    assert await swarm.find(text) is None


@in_real_time
async def test_a_manifest_comes_from_whoever_gives_the_right_one(known: HeldWeights, tmp_path: Path) -> None:
    other = replace(known, encoded=known.encoded[:-1] + b"\0")

    class Lying(WeightsService):
        def __init__(self) -> None:
            super().__init__(other)
            self._digest = known.content_digest

    swarm = Swarm(known, tmp_path)
    for number in (1, 2, 3):
        await swarm.add(number, known)
    gone, liar = (identity_of(number).peer_id for number in (1, 2))
    await swarm.nodes.network.join(gone).close()
    await swarm.nodes.network.join(liar).serve(WEIGHTS, Lying().handle)
    found = await swarm.find(NAME)
    assert found is not None
    folder = await found.folder()
    assert folder is not None and folder.manifest == known.manifest
