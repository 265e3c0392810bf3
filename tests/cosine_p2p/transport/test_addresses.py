"""Multiaddrs: parsing, an address book, ranges, and the dial policy."""

import pytest

from cosine_p2p.transport.addresses import (
    MAX_HOSTS,
    MAX_KNOWN_PEERS,
    MAX_TRIES,
    TRIES_WINDOW_S,
    AddressBook,
    DialPolicy,
    parse_address,
    parse_dialable,
    parse_initial_peers,
    range_of,
)
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import MAX_ADDRESSES
from tests.cosine_p2p.samples import identity_of

PEER, OTHER = (identity_of(number).peer_id for number in (1, 2))


@pytest.mark.parametrize(
    ("text", "host", "port", "listener", "is_plain"),
    [
        (f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}", "192.0.2.1", 4001, PEER, True),
        (f"/dns4/boot.example/tcp/1/p2p/{PEER}", "boot.example", 1, PEER, True),
        (f"/ip4/192.0.2.1/udp/4001/quic-v1/p2p/{PEER}", "192.0.2.1", 4001, PEER, False),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{OTHER}/p2p-circuit/p2p/{PEER}", "192.0.2.1", 1, OTHER, True),
        (f"/dnsaddr/boot.example/p2p/{PEER}", "boot.example", 0, PEER, False),
    ],
)
def test_an_address_says_who_listens_where(text: str, host: str, port: int, listener: str, is_plain: bool) -> None:
    address = parse_address(text, needs_peer=True)
    expected = (host, port, listener, is_plain)
    assert (address.host, address.port, address.peer_ids[0], address.is_plain_tcp) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "slash"),
        (f"/ip4/192.0.2.300/tcp/1/p2p/{PEER}", "no IPv4 address"),
        ("/ip4/192.0.2.1/tcp/1", "whose"),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{PEER[:-1]}", "no peer id"),
        (f"/ip4/192.0.2.1/tcp/1/p2p/nobody/p2p-circuit/p2p/{PEER}", "no peer id"),
        # Valid addresses that a light client cannot dial.
        (f"/ip4/127.0.0.1/udp/4001/quic-v1/p2p/{PEER}", ""),
        (f"/ip4/127.0.0.1/tcp/0/p2p/{PEER}", ""),
    ],
)
def test_what_is_of_no_use_is_refused_with_the_reason(text: str, reason: str) -> None:
    if reason:
        with pytest.raises(ValueError, match=reason):
            parse_address(text, needs_peer=True)
    with pytest.raises(ValueError):
        parse_dialable(text)
    with pytest.raises(UsageError) as caught:
        parse_initial_peers([text])
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_the_book_keeps_the_latest_word_only_what_is_the_peers_and_so_much() -> None:
    book = AddressBook()
    book.note(PEER, ["/ip4/192.0.2.1/tcp/1"])
    whole = f"/ip4/192.0.2.2/tcp/2/p2p/{PEER}"
    book.note(PEER, ["/ip4/192.0.2.2/tcp/2", whole, f"/ip4/192.0.2.3/tcp/3/p2p/{OTHER}"])
    assert book.of(PEER) == {parse_dialable(whole): whole}
    assert not book.of(OTHER)
    book.note(PEER, [f"/ip4/192.0.2.1/tcp/{port}" for port in range(1, 99)])
    assert len(book.of(PEER)) == MAX_ADDRESSES
    for number in range(MAX_KNOWN_PEERS):
        book.note(f"peer {number}", [])
    assert not book.of(PEER)


@pytest.mark.parametrize(
    ("maddr", "expected"),
    [
        ("/ip4/93.184.216.34/tcp/4001", "93.184.216.0/24"),
        ("/ip6/2606:4700:10:1:2:3:4:5/tcp/4001", "2606:4700:10::/48"),
        (f"/ip4/93.184.216.34/tcp/4001/p2p/{OTHER}/p2p-circuit", "93.184.216.0/24"),
        ("/ip4/192.168.1.7/tcp/4001", ""),
        ("/ip4/100.64.3.4/tcp/4001", ""),
        ("/dns4/example.org/tcp/4001", ""),
        ("nonsense", ""),
    ],
)
def test_the_range_of_an_address(maddr: str, expected: str) -> None:
    assert range_of(maddr) == expected


PUBLIC = ("93.184.216.34", "2606:2800:220:1::1")
PRIVATE = ("10.1.2.3", "172.17.0.2", "192.168.1.1", "100.64.0.9", "fd00::1")
LOCAL = ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")
NOBODY = (
    *("0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1", "169.254.169.254", "fe80::1%eth0"),
    *("2002:7f00:1::", "2001:0:1::1", "name", ""),
)


@pytest.mark.parametrize(
    ("named", "permitted"),
    [
        ((), PUBLIC),
        (PUBLIC[:1], PUBLIC),
        (("192.168.1.5",), (*PUBLIC, *PRIVATE)),
        (("127.0.0.1", PUBLIC[0]), (*PUBLIC, *PRIVATE, *LOCAL)),
    ],
)
def test_only_private_swarms_dial_private_addresses(named: tuple[str, ...], permitted: tuple[str, ...]) -> None:
    policy = DialPolicy(named)
    everything = (*PUBLIC, *PRIVATE, *LOCAL, *NOBODY)
    assert {host for host in everything if policy.permits(host, now_s=0.0)} == set(permitted)


def test_a_public_host_without_a_peer_is_dialled_a_few_times_a_minute_and_others_without_limit() -> None:
    policy = DialPolicy(())
    silent, lively = PUBLIC
    dials = 0
    for at_s in range(100):
        dials += policy.takes_try(silent, now_s=at_s / 10)
        assert policy.takes_try(lively, now_s=at_s / 10)
        policy.note_peer(lively)
    assert dials == MAX_TRIES
    assert policy.permits(silent, now_s=TRIES_WINDOW_S)
    # A bounded number of hosts is remembered.
    assert not policy.permits(silent, now_s=10.0)
    for number in range(MAX_HOSTS):
        assert policy.takes_try(f"{20 + number // 256}.{number % 256}.0.1", now_s=10.0)
    assert policy.permits(silent, now_s=10.0)
