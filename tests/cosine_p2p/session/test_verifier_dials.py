"""Verifiers are dialled one after the other where they answer, and side by side where they do not."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.session.verifier_dials import DIAL_NEXT_S, MAX_DIALS, VerifierDials, VerifierQueue
from cosine_p2p.transport.link import Links, PeerLink
from cosine_protocol.errors import PeerLost

GIVEN_UP_S = 4.0


@dataclass(slots=True)
class Net:
    """Peers that answer a dial after some seconds; those that are not named never do."""

    answers_s: dict[str, float]
    needed: int = 1
    used: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def get(self, peer_id: str, protocol: str) -> str:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(min(GIVEN_UP_S, self.answers_s.get(peer_id, GIVEN_UP_S)))
        finally:
            self.at_once -= 1
        if peer_id not in self.answers_s:
            raise PeerLost(peer_id, "no answer")
        return peer_id

    def use(self, link: PeerLink) -> bool:
        if len(self.used) >= self.needed:
            return False
        self.used.append(str(link))
        return True

    def lose(self, peer_id: str, lost: PeerLost) -> None:
        self.lost.append(peer_id)


def dialled(net: Net, peers: list[str]) -> tuple[float, VerifierQueue, list[str]]:
    """Dial until enough are used or nobody is left: the seconds it took, who is left, and who took long."""

    async def run() -> tuple[float, VerifierQueue, list[str]]:
        queue, loop = VerifierQueue(peers), asyncio.get_running_loop()
        dials = VerifierDials(queue, cast("Links", net), use=net.use, lose=net.lose)
        dials.begin(net.needed, now_s=loop.time())
        while len(net.used) < net.needed and len(dials):
            await dials.wait(100.0)
            dials.begin(net.needed - len(net.used), now_s=loop.time())
        late = dials.late(loop.time())
        took_s = loop.time()
        await dials.close()
        return took_s, queue, late

    return run_virtual(run())


def test_one_that_answers_soon_is_dialled_alone() -> None:
    net = Net({"a": 0.1, "b": 0.1})
    took_s, queue, _ = dialled(net, ["a", "b"])
    assert (net.used, net.most_at_once, queue.next(0.0)) == (["a"], 1, "b")
    assert took_s < DIAL_NEXT_S


def test_tarpits_are_dialled_side_by_side() -> None:
    net = Net({"honest": 0.1})
    took_s, _, late = dialled(net, [*"abcdefghijkl", "honest"])
    assert net.used == ["honest"] and took_s < GIVEN_UP_S + 6 * DIAL_NEXT_S
    assert net.most_at_once <= MAX_DIALS
    assert set(net.lost) | set(late) >= set("abcdefghijk")


def test_one_that_answers_late_and_is_not_needed_is_asked_first_again() -> None:
    net = Net({"slow": 0.6, "quick": 0.3})
    _, queue, _ = dialled(net, ["slow", "quick", "other"])
    assert net.used == ["slow"] and queue.next(0.0) == "other"

    async def both() -> str | None:
        queue = VerifierQueue(["slow", "quick"])
        dials = VerifierDials(
            queue, cast("Links", Net({"slow": 0.6, "quick": 0.3}, needed=0)), use=deny, lose=net.lose
        )
        dials.begin(2, now_s=0.0)
        await asyncio.sleep(1.0)
        dials.begin(0, now_s=1.0)
        return queue.next(1.0)

    def deny(link: PeerLink) -> bool:
        return False

    assert run_virtual(both()) == "slow"


def test_where_nobody_answers_all_are_lost() -> None:
    net = Net({})
    dialled(net, ["a", "b"])
    assert (net.used, net.lost) == ([], ["a", "b"])
