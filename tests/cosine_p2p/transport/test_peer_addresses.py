"""Which addresses of peers a light client dials, and what it remembers of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.transport.peer_addresses import (
    MAX_KNOWN_PEERS,
    AddressBook,
    PeerAddress,
    parse_address,
    parse_initial_peers,
)
from cosine_protocol import limits
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity

PEER, OTHER = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2))


@pytest.mark.parametrize(
    ("maddr", "expected"),
    [
        (f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}", PeerAddress(PEER, "127.0.0.1", 4001)),
        (f"/ip6/::1/tcp/65535/p2p/{PEER}", PeerAddress(PEER, "::1", 65535)),
        (f"/dns4/node.example.org/tcp/1/p2p/{PEER}", PeerAddress(PEER, "node.example.org", 1)),
        (
            f"/ip4/192.0.2.1/tcp/4001/p2p/{OTHER}/p2p-circuit/p2p/{PEER}",
            PeerAddress(PEER, "192.0.2.1", 4001, relay=OTHER),
        ),
    ],
)
def test_tcp_addresses_are_understood(maddr: str, expected: PeerAddress) -> None:
    assert parse_address(maddr) == expected


@pytest.mark.parametrize(
    "maddr",
    [
        "",
        "localhost:4001",
        "/ip4/127.0.0.1/tcp/4001",
        f"/ip4/127.0.0.1/udp/4001/quic-v1/p2p/{PEER}",
        f"/ip4/127.0.0.1/tcp/4001/ws/p2p/{PEER}",
        f"/ip4/256.0.0.1/tcp/4001/p2p/{PEER}",
        f"/ip4/127.0.0.1/tcp/0/p2p/{PEER}",
        f"/ip4/127.0.0.1/tcp/65536/p2p/{PEER}",
        f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}/",
        f"/dns4/-/tcp/4001/p2p/{PEER}",
        "/ip4/127.0.0.1/tcp/4001/p2p/somebody",
        f"/ip4/192.0.2.1/tcp/4001/p2p/nobody/p2p-circuit/p2p/{PEER}",
    ],
)
def test_others_are_refused(maddr: str) -> None:
    with pytest.raises(ValueError):
        parse_address(maddr)
    with pytest.raises(UsageError) as caught:
        parse_initial_peers([maddr])
    assert maddr in str(caught.value) and "\n" not in str(caught.value)


@given(
    st.lists(st.sampled_from(["", "ip4", "ip6", "dns", "tcp", "p2p", "p2p-circuit", "1", "::1", PEER]) | st.text())
)
def test_whatever_a_record_names_is_understood_or_skipped(parts: list[str]) -> None:
    book = AddressBook()
    book.note(PEER, ["/".join(parts)])
    assert all(isinstance(address, PeerAddress) and address.peer_id == PEER for address in book.of(PEER))


def test_the_book_keeps_the_latest_word_and_only_what_is_the_peers() -> None:
    book = AddressBook()
    book.note(PEER, ["/ip4/192.0.2.1/tcp/1"])
    book.note(
        PEER, ["/ip4/192.0.2.2/tcp/2", f"/ip4/192.0.2.2/tcp/2/p2p/{PEER}", f"/ip4/192.0.2.3/tcp/3/p2p/{OTHER}"]
    )
    assert book.of(PEER) == [PeerAddress(PEER, "192.0.2.2", 2)]
    assert book.of(OTHER) == []


def test_the_book_is_bounded() -> None:
    book = AddressBook()
    for number in range(MAX_KNOWN_PEERS + 1):
        book.note(f"peer {number}", [])
    book.note(PEER, [f"/ip4/192.0.2.1/tcp/{port}" for port in range(1, 99)])
    assert len(book.of(PEER)) == limits.MAX_ADDRESSES
    assert len(book._addresses) == MAX_KNOWN_PEERS
