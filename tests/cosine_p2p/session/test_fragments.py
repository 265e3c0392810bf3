"""Fragments are taken in turns and only from drafters whose signatures hold."""

import asyncio

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.session.fragments import MAX_WAITING_FRAGMENTS, FragmentGate
from cosine_p2p.transport.link import Delivery
from cosine_protocol import messages as m
from cosine_protocol.codec import encode_body
from cosine_protocol.nodes import BASE, Node, NodeBlock
from cosine_protocol.protocols import DRAFT
from tests.cosine_p2p.samples import identity_of

D_0 = bytes(range(16))
NODES = NodeBlock.of([Node(BASE, 1, 0.5)])


def fragment(sequence: int, *, sender: int = 1, signer: int | None = None) -> Delivery:
    draft = m.Draft(1, sequence, bytes(16), 0, NODES)
    body = encode_body(draft)
    signature = identity_of(sender if signer is None else signer).sign(kind="fragment", digest=D_0, body=body)
    return Delivery(identity_of(sender).peer_id, DRAFT, m.Fragment(body, signature), draft)


def taken(*batches: list[Delivery]) -> tuple[list[tuple[str, int]], list[str]]:
    """Senders and sequence numbers of what passes, and who is refused; each batch comes after the last is done."""

    async def run() -> tuple[list[tuple[str, int]], list[str]]:
        passed: list[tuple[str, int]] = []
        refused: list[str] = []
        gate = FragmentGate(
            D_0,
            _at_once,
            take=lambda peer_id, _, draft: passed.append((peer_id, draft.sequence)),
            refuse=lambda peer_id, _: refused.append(peer_id),
        )
        checking = asyncio.ensure_future(gate.run())
        for batch in batches:
            for delivery in batch:
                gate.put(delivery)
            await asyncio.sleep(1.0)
        checking.cancel()
        return passed, refused

    return run_virtual(run())


async def _at_once(check: object) -> None:
    assert callable(check)
    check()


def peer(number: int) -> str:
    return identity_of(number).peer_id


def test_good_fragments_pass_in_order() -> None:
    assert taken([fragment(1), fragment(2)], [fragment(3)]) == ([(peer(1), n) for n in (1, 2, 3)], [])


def test_a_flood_costs_its_sender_alone() -> None:
    flood = [fragment(n, sender=1) for n in range(1, 2 * MAX_WAITING_FRAGMENTS + 1)]
    passed, _ = taken([*flood[:-1], fragment(1, sender=2), fragment(2, sender=2), flood[-1]])
    assert [place for place, (sender, _) in enumerate(passed) if sender == peer(2)] == [1, 3]
    assert len(passed) == MAX_WAITING_FRAGMENTS + 2
    assert passed[-1] == (peer(1), 2 * MAX_WAITING_FRAGMENTS)


def test_after_one_bad_signature_nothing_of_its_sender_is_taken() -> None:
    bad = fragment(2, sender=1, signer=3)
    passed, refused = taken([fragment(1), bad, fragment(3), fragment(1, sender=2)], [fragment(4)])
    assert passed == [(peer(1), 1), (peer(2), 1)]
    assert refused == [peer(1)]
