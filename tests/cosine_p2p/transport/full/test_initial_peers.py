"""Initial peers are reconnected soon after they return, after any absence and from any network."""

import asyncio
from typing import Any

import pytest

from cosine_p2p.transport.full import initial_peers
from cosine_p2p.transport.full.initial_peers import LOOK_S, MEET_S, InitialPeers
from cosine_p2p.transport.patience import end_all
from cosine_protocol.errors import PeerLost
from tests.cosine_p2p.samples import identity_of
from tests.scenes import in_virtual_time

BOOT, OTHER = (identity_of(number).peer_id for number in (1, 2))
HOST = "9.9.9.9"
MADDRS = [f"/ip4/{HOST}/tcp/{number}/p2p/{peer_id}" for number, peer_id in enumerate((BOOT, OTHER), 4001)]


class World:
    """A machine, its p2pd and the listening peers; also the daemon."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listening = set(MADDRS)
        self.local = frozenset({"192.168.1.2"})
        self.connected: dict[str, tuple[str, ...]] = {}
        self.cut: list[str] = []
        self.looks = 0
        self.failed_dials = 0
        self.stood_still_s = 0.0
        monkeypatch.setattr(initial_peers, "listens_at", self.listens_at)
        monkeypatch.setattr(initial_peers, "local_hosts", lambda remotes: self.local)
        monkeypatch.setattr(initial_peers, "elapsed_s", self.elapsed_s)

    def peers(self) -> InitialPeers:
        return InitialPeers(MADDRS, hosts=[HOST], daemon=self.daemon)

    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() + self.stood_still_s

    async def listens_at(self, maddr: str) -> bool:
        self.looks += 1
        return maddr in self.listening

    async def daemon(self) -> Any:
        return self

    async def ways(self) -> dict[str, tuple[str, ...]]:
        return dict(self.connected)

    async def connect(self, peer_id: str, maddrs: tuple[str, ...], timeout_s: float) -> None:
        if not self.listening.issuperset(maddrs):
            self.failed_dials += 1
            raise PeerLost(peer_id, "nothing listens there")
        self.connected[peer_id] = maddrs

    async def disconnect(self, peer_id: str) -> None:
        self.cut.append(peer_id)
        self.connected.pop(peer_id, None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("away_s", [1.0, 60.0])
@in_virtual_time
async def test_an_absent_peer_is_reconnected_soon_without_failed_dials(world: World, away_s: float) -> None:
    running = asyncio.ensure_future(world.peers().run())
    await asyncio.sleep(2 * LOOK_S)
    assert world.connected.keys() == {BOOT, OTHER}
    world.listening.discard(MADDRS[0])
    del world.connected[BOOT]
    await asyncio.sleep(away_s)
    world.listening.add(MADDRS[0])
    await asyncio.sleep(MEET_S + 2 * LOOK_S)
    assert world.connected.keys() == {BOOT, OTHER}
    await end_all([running])
    assert world.failed_dials == 0
    assert world.looks < 30 + away_s / MEET_S


@pytest.mark.parametrize(("stood_still_s", "cut"), [(20.0, []), (40.0, [BOOT, OTHER])])
@in_virtual_time
async def test_a_suspend_ends_all_connections(world: World, stood_still_s: float, cut: list[str]) -> None:
    running = asyncio.ensure_future(world.peers().run())
    await asyncio.sleep(2 * LOOK_S)
    world.stood_still_s = stood_still_s
    await asyncio.sleep(3 * LOOK_S)
    assert sorted(world.cut) == sorted(cut)
    assert world.connected.keys() == {BOOT, OTHER}
    await end_all([running])
