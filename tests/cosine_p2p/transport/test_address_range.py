"""The address range that a peer counts for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.transport.addresses import range_of
from tests.cosine_p2p.samples import identity_of

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
