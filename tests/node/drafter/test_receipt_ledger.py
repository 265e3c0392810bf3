"""A drafter keeps receipts for its own work only, within bounds that no verifier can use against another."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cosine_lab.simulation.swarm import numbered_identity
from cosine_node.drafter.receipt_ledger import HALF_LIFE_S, LATE_S, MAX_EXPECTED, MAX_KEPT, ReceiptLedger, worth
from cosine_p2p.storage.state_file import StateFile
from cosine_protocol.digests import request_digest
from cosine_protocol.identity import Identity
from cosine_protocol.limits import MAX_RECORD_SKEW_S
from cosine_protocol.messages import Earning, Receipt, SignedReceipt
from cosine_protocol.request import Request
from cosine_protocol.statements import sign_earning, sign_receipt
from tests.protocol.samples import request_of

DRAFTER, CLIENT, VERIFIER, OTHER = map(numbered_identity, (1, 2, 3, 4))
NOW_S = 1e9


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def request(number: int = 0, client: Identity = CLIENT) -> Request:
    return request_of(client=client.peer_id, nonce=number.to_bytes(16))


def signed(
    asked: Request, *, signer: Identity = CLIENT, verifier: Identity = VERIFIER, **changes: Any
) -> SignedReceipt:
    """A receipt that fits, with some facts changed."""
    facts: dict[str, Any] = {
        "target_digest": asked.target_digest,
        "client": asked.client,
        "drafter": DRAFTER.peer_id,
        "tokens": 10,
        "text_tokens": 20,
        "ended_at_s": NOW_S,
    }
    expertise = changes.pop("expertise", ("code",))
    d_0 = request_digest(asked)
    earning = sign_earning(verifier, Earning(**(facts | changes)), d_0=d_0)
    return sign_receipt(signer, Receipt(verifier.peer_id, expertise, earning), d_0=d_0)


def ledger(file: StateFile | None = None, clock: Clock | None = None) -> ReceiptLedger:
    return ReceiptLedger(DRAFTER.peer_id, expertise=("code",), clock=clock or Clock(), file=file)


def expecting(*asked: Request, sent_nodes: int = 30) -> ReceiptLedger:
    made = ledger()
    for each in asked:
        made.expect(each, request_digest(each), sent_nodes=sent_nodes)
    return made


def test_a_receipt_for_its_work_counts_once() -> None:
    made = expecting(request())
    assert made.take(signed(request())) == 10
    assert made.take(signed(request())) == 0
    earned = made.earnings()
    assert (earned.tokens, earned.receipts, earned.verifiers, earned.clients) == (10, 1, 1, 1)
    assert made.domain == "code"
    assert [worth(made.kept[0], NOW_S + later_s) for later_s in (0.0, HALF_LIFE_S)] == [10, 5]


@pytest.mark.parametrize(
    "changes",
    [
        {"drafter": OTHER.peer_id},
        {"target_digest": bytes(32)},
        {"client": OTHER.peer_id},
        {"expertise": ("poetry",)},
        {"tokens": 31, "text_tokens": 40},
        {"tokens": 21},
        {"text_tokens": 129},
        {"ended_at_s": NOW_S - LATE_S - 1},
        {"ended_at_s": NOW_S + MAX_RECORD_SKEW_S + 1},
    ],
)
def test_one_that_is_about_anything_else_does_not(changes: dict[str, Any]) -> None:
    made = expecting(request())
    assert made.take(signed(request(), **changes)) == 0
    assert made.kept == []


def test_nor_one_that_is_forged_or_for_a_request_that_it_never_followed() -> None:
    made = expecting(request())
    assert made.take(signed(request(1))) == 0
    assert made.take(signed(request(), signer=OTHER)) == 0
    assert made.take(signed(request())) == 0, "signatures are checked once a request"
    made = expecting(request())
    assert made.take(replace(signed(request()), body=b"")) == 0


def test_nodes_of_two_turns_in_a_request_add_up_and_old_requests_are_forgotten() -> None:
    """Who names another's digest costs it no receipt."""
    made, d_0 = ledger(), request_digest(request())
    for asked in (request(client=OTHER), request(), request(client=OTHER), request()):
        made.expect(asked, d_0, sent_nodes=5)
    assert made.take(signed(request())) == 10
    made = expecting(*map(request, range(MAX_EXPECTED + 1)))
    assert made.take(signed(request(0))) == 0
    assert made.take(signed(request(1))) == 10


def test_one_verifier_with_many_clients_pushes_nothing_of_others_out() -> None:
    made = expecting(request())
    assert made.take(signed(request(), verifier=OTHER))
    for number in range(1, MAX_KEPT + 20):
        client = numbered_identity(100 + number % 5)
        asked = request(number, client)
        made.expect(asked, request_digest(asked), sent_nodes=30)
        assert made.take(signed(asked, signer=client, tokens=20))
    assert len(made.kept) == MAX_KEPT
    assert made.kept[0].verifier == OTHER.peer_id
    assert made.earnings().tokens == 10 + 20 * (MAX_KEPT + 19)


def test_the_best_are_of_different_verifiers_and_clients() -> None:
    made = ledger()
    signers = [(VERIFIER, CLIENT), (VERIFIER, CLIENT), (VERIFIER, OTHER), (OTHER, CLIENT)]
    digests = []
    for number, (verifier, client) in enumerate(signers):
        asked = request(number, client)
        made.expect(asked, request_digest(asked), sent_nodes=30)
        made.take(signed(asked, signer=client, verifier=verifier, tokens=20 - number))
        digests.append(request_digest(asked))
    assert [digests.index(each.d_0) for each in made.best(8)] == [0, 3, 2, 1]
    assert len(made.best(2)) == 2


def test_all_is_kept_between_runs_and_what_is_broken_is_left_out(tmp_path: Path) -> None:
    file = StateFile("receipts.json", max_bytes=1 << 20, file=tmp_path / "receipts.json")
    clock = Clock()
    made = ledger(file, clock)
    for number, later_s in enumerate((0.0, 100.0)):
        # It is written now and then.
        clock.now_s = NOW_S + later_s
        made.expect(request(number), request_digest(request(number)), sent_nodes=30)
        assert made.take(signed(request(number), ended_at_s=clock.now_s))
        assert bool(file.read()) == bool(later_s)
    again = ledger(file)
    assert (again.kept, again.earnings()) == (made.kept, made.earnings())
    written = file.read()
    file.write(written | {"receipts": ["?", 1, "AAAA", *written["receipts"]]})
    assert ledger(file).kept == made.kept
    file.write({"tokens": "many"})
    assert ledger(file).earnings().tokens == 0


def test_receipts_count_for_the_domains_that_were_announced_when_they_were_earned() -> None:
    earlier, later, never = request(1), request(2), request(3)
    kept = expecting(earlier, later, never)
    kept.announce(("code", "math"))
    assert kept.domain == "code,math"
    assert kept.take(signed(earlier)) and kept.take(signed(later, expertise=("code", "math")))
    assert not kept.take(signed(never, expertise=("medical",)))
