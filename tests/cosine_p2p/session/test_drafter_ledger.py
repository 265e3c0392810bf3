"""Author numbers and what became of drafts."""

from cosine_p2p.request.results import DrafterReport
from cosine_p2p.session.drafters import DrafterLedger
from cosine_protocol.nodes import BASE, Node, NodeBlock
from tests.cosine_p2p.samples import identity_of, record_of

PEERS = [identity_of(number) for number in range(3)]
RECORDS = [
    record_of(PEERS[0], now_s=0.0),
    record_of(PEERS[1], now_s=0.0, expertise=("code", "math")),
    record_of(PEERS[2], now_s=0.0, expertise=()),
]


def chain(tokens: int) -> NodeBlock:
    return NodeBlock.of([Node(index - 1, 7, 1.0) for index in range(tokens)])


def test_authors_count_from_one_in_the_order_of_records() -> None:
    ledger = DrafterLedger(RECORDS)
    assert list(ledger.authors) == [1, 2, 3]
    assert [ledger.author_of(peer_id) for peer_id in ledger.peer_ids] == [1, 2, 3]
    assert ledger.author_of("a stranger") == 0
    assert [ledger.domain_of(author) for author in ledger.authors] == ["code", "code,math", "tiny"]


def test_reports_name_those_that_sent_anything() -> None:
    ledger = DrafterLedger(RECORDS)
    ledger.note_drafted(2, chain(5), 0)
    ledger.note_drafted(2, chain(3), 5)
    ledger.note_drafted(3, chain(1), 0)
    ledger.note_rtt(2, 0.01234)
    ledger.credit(bytes([0, 2, 2, 0, 1]))
    assert ledger.drafted == 9
    assert ledger.reports() == (
        DrafterReport(PEERS[1].peer_id, "code,math", 8, 2, 12.34),
        DrafterReport(PEERS[2].peer_id, "tiny", 1, 0, 0.0),
    )


def test_a_position_is_offered_once_however_many_nodes_stand_for_it() -> None:
    ledger = DrafterLedger(RECORDS)
    tree = NodeBlock.of([Node(BASE, 7, 1.0), Node(BASE, 8, 1.0), Node(1, 9, 1.0)])
    ledger.note_drafted(1, tree, 1)
    ledger.note_drafted(2, chain(2), 2)
    ledger.credit(bytes([0, 1, 0]))
    assert ledger.offered == 2
    # What comes too late was not offered.
    ledger.note_drafted(3, chain(3), 0)
    ledger.credit(bytes([2, 0]))
    assert ledger.offered == 3


def test_positions_that_no_output_has_are_not_remembered() -> None:
    ledger = DrafterLedger(RECORDS)
    ledger.note_drafted(1, chain(3), 2**40)
    ledger.note_drafted(1, chain(0), 0)
    ledger.credit(bytes([0]))
    assert (ledger.drafted, ledger.offered) == (3, 0)
