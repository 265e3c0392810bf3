"""Initial peers are met again soon after they are back, however long they were away, and from any network."""

import asyncio
from typing import Any

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.transport.full import initial_peers
from cosine_p2p.transport.full.initial_peers import LOOK_S, MEET_S, InitialPeers
from cosine_protocol.errors import PeerLost
from tests.cosine_p2p.samples import identity_of

BOOT, OTHER = (identity_of(number).peer_id for number in (1, 2))
HOST = "9.9.9.9"
MADDRS = [f"/ip4/{HOST}/tcp/{number}/p2p/{peer_id}" for number, peer_id in enumerate((BOOT, OTHER), 4001)]


class World:
    """A machine, its p2pd and those who listen; implements what is asked of the daemon.

    As the real one p2pd does not dial a peer again for a while, which grows with each dial in vain.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listening = set(MADDRS)
        self.local = frozenset({"192.168.1.2"})
        self.connected: dict[str, tuple[str, ...]] = {}
        self.cut: list[str] = []
        self.looks = 0
        self.dials_in_vain = 0
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
            self.dials_in_vain += 1
            raise PeerLost(peer_id, "nothing listens there")
        self.connected[peer_id] = maddrs

    async def disconnect(self, peer_id: str) -> None:
        self.cut.append(peer_id)
        self.connected.pop(peer_id, None)

    def end(self, peer_id: str, maddr: str) -> None:
        """A peer leaves."""
        self.listening.discard(maddr)
        self.connected.pop(peer_id, None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("away_s", [1.0, 60.0])
def test_one_that_was_away_is_met_within_ten_seconds_and_was_never_dialled_in_vain(
    world: World, away_s: float
) -> None:
    async def scene() -> None:
        running = asyncio.ensure_future(world.peers().run())
        await asyncio.sleep(2 * LOOK_S)
        assert world.connected.keys() == {BOOT, OTHER}
        world.end(BOOT, MADDRS[0])
        await asyncio.sleep(away_s)
        world.listening.add(MADDRS[0])
        await asyncio.sleep(MEET_S + 2 * LOOK_S)
        assert world.connected.keys() == {BOOT, OTHER}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert world.dials_in_vain == 0
        assert world.looks < 30 + away_s / MEET_S

    run_virtual(scene())


@pytest.mark.parametrize(("stood_still_s", "cut"), [(20.0, set()), (40.0, {BOOT, OTHER})])
def test_after_a_suspend_all_are_dialled_anew_as_they_have_hung_up(
    world: World, stood_still_s: float, cut: set[str]
) -> None:
    async def scene() -> None:
        running = asyncio.ensure_future(world.peers().run())
        await asyncio.sleep(2 * LOOK_S)
        world.stood_still_s = stood_still_s
        await asyncio.sleep(3 * LOOK_S)
        assert set(world.cut) == cut and len(world.cut) == len(cut)
        assert world.connected.keys() == {BOOT, OTHER}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtual(scene())
