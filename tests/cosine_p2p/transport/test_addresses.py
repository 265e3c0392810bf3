"""What a multiaddr says, which addresses of peers a light client dials, what it remembers, and their ranges."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.transport.addresses import (
    MAX_KNOWN_PEERS,
    Address,
    AddressBook,
    parse_address,
    parse_dialable,
    parse_initial_peers,
    range_of,
)
from cosine_protocol import limits
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity
from tests.cosine_p2p.samples import identity_of

PEER, OTHER = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2))


@pytest.mark.parametrize(
    ("text", "host", "port", "listener", "is_plain"),
    [
        (f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}", "192.0.2.1", 4001, PEER, True),
        (f"/ip6/2001:db8::1/tcp/4001/p2p/{PEER}", "2001:db8::1", 4001, PEER, True),
        (f"/dns4/boot.example/tcp/1/p2p/{PEER}", "boot.example", 1, PEER, True),
        (f"/ip4/192.0.2.1/udp/4001/quic-v1/p2p/{PEER}", "192.0.2.1", 4001, PEER, False),
        (f"/ip4/192.0.2.1/tcp/80/ws/p2p/{PEER}", "192.0.2.1", 80, PEER, False),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{OTHER}/p2p-circuit/p2p/{PEER}", "192.0.2.1", 1, OTHER, True),
        (f"/dnsaddr/boot.example/p2p/{PEER}", "boot.example", 0, PEER, False),
    ],
)
def test_an_address_says_who_listens_where(text: str, host: str, port: int, listener: str, is_plain: bool) -> None:
    address = parse_address(text, needs_peer=True)
    assert (address.host, address.port, address.peer_ids[0], address.is_plain_tcp) == (
        host,
        port,
        listener,
        is_plain,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "slash"),
        ("nonsense", "slash"),
        ("/", "unknown"),
        ("/ip4", "lacks its value"),
        ("/ip4/192.0.2.1", "host and a port"),
        ("/tcp/4001/ip4/192.0.2.1", "host and a port"),
        (f"/ip4/192.0.2.300/tcp/1/p2p/{PEER}", "no IPv4 address"),
        (f"/ip6/192.0.2.1/tcp/1/p2p/{PEER}", "no IPv6 address"),
        (f"/ip4/192.0.2.1/tcp/70000/p2p/{PEER}", "no port"),
        (f"/ip4/192.0.2.1/tcp/-1/p2p/{PEER}", "no port"),
        ("/ip4/192.0.2.1/tcp/1", "whose"),
        ("/ip4/192.0.2.1/tcp/1/p2p", "lacks its value"),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{PEER[:-1]}", "no peer id"),
        (f"/ip4/192.0.2.1/carrier-pigeon/1/p2p/{PEER}", "unknown"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_address(text, needs_peer=True)


@given(
    st.lists(st.sampled_from(["ip4", "tcp", "p2p", "ws", "1", "192.0.2.1", PEER, "", "dns"]) | st.text(max_size=5))
)
def test_any_text_is_an_address_or_a_value_error(words: list[str]) -> None:
    try:
        assert isinstance(parse_address("/" + "/".join(words)), Address)
    except ValueError as error:
        assert str(error)


def direct(host: str, port: int, *, kind: str = "ip4") -> Address:
    return Address(host_kind=kind, host=host, port_kind="tcp", port=port, layers=("p2p",), peer_ids=(PEER,))


def relayed(host: str, port: int) -> Address:
    return replace(direct(host, port), layers=("p2p", "p2p-circuit", "p2p"), peer_ids=(OTHER, PEER))


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
        parse_dialable(maddr)
    with pytest.raises(UsageError) as caught:
        parse_initial_peers([maddr])
    assert maddr in str(caught.value) and "\n" not in str(caught.value)


@given(
    st.lists(st.sampled_from(["", "ip4", "ip6", "dns", "tcp", "p2p", "p2p-circuit", "1", "::1", PEER]) | st.text())
)
def test_whatever_a_record_names_is_understood_or_skipped(parts: list[str]) -> None:
    book = AddressBook()
    book.note(PEER, ["/".join(parts)])
    assert all(isinstance(address, Address) and address.peer_id == PEER for address in book.of(PEER))


def test_the_book_keeps_the_latest_word_and_only_what_is_the_peers() -> None:
    book = AddressBook()
    book.note(PEER, ["/ip4/192.0.2.1/tcp/1"])
    book.note(
        PEER, ["/ip4/192.0.2.2/tcp/2", f"/ip4/192.0.2.2/tcp/2/p2p/{PEER}", f"/ip4/192.0.2.3/tcp/3/p2p/{OTHER}"]
    )
    assert list(book.of(PEER)) == [direct("192.0.2.2", 2)]
    assert not book.of(OTHER)


def test_the_book_is_bounded() -> None:
    book = AddressBook()
    book.note(PEER, [f"/ip4/192.0.2.1/tcp/{port}" for port in range(1, 99)])
    assert len(book.of(PEER)) == limits.MAX_ADDRESSES
    for number in range(MAX_KNOWN_PEERS):
        book.note(f"peer {number}", [])
    assert not book.of(PEER)


RELAY = identity_of(1).peer_id


@pytest.mark.parametrize(
    ("maddr", "expected"),
    [
        ("/ip4/93.184.216.34/tcp/4001", "93.184.216.0/24"),
        ("/ip4/93.184.216.99/udp/4001/quic-v1", "93.184.216.0/24"),
        ("/ip6/2606:4700:10:1:2:3:4:5/tcp/4001", "2606:4700:10::/48"),
        (f"/ip4/93.184.216.34/tcp/4001/p2p/{RELAY}/p2p-circuit", "93.184.216.0/24"),
        ("/ip4/127.0.0.1/tcp/4001", ""),
        ("/ip4/192.168.1.7/tcp/4001", ""),
        ("/ip4/100.64.3.4/tcp/4001", ""),
        ("/ip6/fe80::1/tcp/4001", ""),
        ("/dns4/example.org/tcp/4001", ""),
        ("/unix/tmp/socket", ""),
        ("nonsense", ""),
        ("", ""),
    ],
)
def test_the_range_of_an_address(maddr: str, expected: str) -> None:
    assert range_of(maddr) == expected


@given(st.text(max_size=60))
def test_no_text_confuses_it(maddr: str) -> None:
    assert isinstance(range_of(maddr), str)


@given(st.ip_addresses(v=4), st.ip_addresses(v=4))
def test_two_peers_share_a_range_where_their_addresses_differ_in_the_last_byte_only(
    one: object, other: object
) -> None:
    ranges = [range_of(f"/ip4/{address}/tcp/1") for address in (one, other)]
    if all(ranges):
        assert (ranges[0] == ranges[1]) == (str(one).rsplit(".", 1)[0] == str(other).rsplit(".", 1)[0])
