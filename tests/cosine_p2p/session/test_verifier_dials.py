"""Tests of dials of verifiers, and of their order."""

import asyncio
from dataclasses import dataclass, field

from cosine_p2p.session.verifier_dials import DIAL_NEXT_S, MAX_DIALS, VerifierDials, VerifierQueue
from cosine_p2p.transport.patience import end_all
from tests.scenes import in_virtual_time

GIVEN_UP_S = 4.0


@dataclass(slots=True)
class Net:
    """Peers that answer a dial after some seconds; others never answer."""

    answers_s: dict[str, float]
    used: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def dial(self, peer_id: str) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(min(GIVEN_UP_S, self.answers_s.get(peer_id, GIVEN_UP_S)))
        finally:
            self.at_once -= 1
        (self.used if peer_id in self.answers_s else self.lost).append(peer_id)


@in_virtual_time
async def dialled(net: Net, peers: list[str]) -> tuple[float, VerifierQueue, list[str]]:
    """Dial until one is used or none is left; return the seconds, the rest of the queue, and late peers."""
    queue, loop = VerifierQueue(peers), asyncio.get_running_loop()
    dials: VerifierDials[asyncio.Task[None]] = VerifierDials(queue)
    while not net.used:
        for task in [task for task in dials if task.done()]:
            dials.note_ended(task)
        for peer_id in dials.due(1, now_s=loop.time()):
            dials.note_begun(asyncio.ensure_future(net.dial(peer_id)), peer_id, now_s=loop.time())
        timeout_s = dials.next_late_s(loop.time()) - loop.time()
        await asyncio.wait(list(dials), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    late, took_s = dials.late(loop.time()), loop.time()
    await end_all(dials)
    return took_s, queue, late


def test_tarpits_are_dialled_side_by_side() -> None:
    net = Net({"honest": 0.1})
    took_s, _, late = dialled(net, [*"abcdefghijkl", "honest"])
    assert net.used == ["honest"] and took_s < GIVEN_UP_S + 6 * DIAL_NEXT_S
    assert net.most_at_once <= MAX_DIALS
    assert set(net.lost) | set(late) >= set("abcdefghijk")


def test_who_was_too_slow_is_asked_once_more_after_all_others() -> None:
    queue = VerifierQueue(["a", "b", "c"])
    queue.ask_last(queue.next(0.0) or "")
    queue.back_off(queue.next(0.0) or "", until_s=5.0)
    assert queue.has_fresh and queue.next(0.0) == "c" and not queue.has_fresh
    assert [queue.next(4.0), queue.next(5.0), queue.next(5.0)] == [None, "b", "a"]
    queue.ask_last("a")
    assert queue.next(9.0) is None
