"""Records of strangers turn no client against a third machine, nor against its own network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.transport.addresses import MAX_HOSTS, MAX_TRIES, TRIES_WINDOW_S, DialPolicy, Reach, reach_of

PUBLIC, OTHER = "93.184.216.34", "2606:2800:220:1::1"
PRIVATE = ("10.1.2.3", "172.17.0.2", "192.168.1.1", "100.64.0.9", "fd00::1")
LOCAL = ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")
NOBODY = (
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "ff02::1",
    "169.254.169.254",
    "fe80::1%eth0",
    "2002:7f00:1::",
    "2001:0:1::1",
    "name",
    "",
)


@pytest.mark.parametrize(
    ("hosts", "reach"),
    [((PUBLIC, OTHER), Reach.PUBLIC), (PRIVATE, Reach.PRIVATE), (LOCAL, Reach.LOOPBACK), (NOBODY, Reach.NOBODY)],
)
def test_an_address_means_a_public_a_private_or_this_machine(hosts: tuple[str, ...], reach: Reach) -> None:
    assert {host: reach_of(host) for host in hosts} == dict.fromkeys(hosts, reach)


@pytest.mark.parametrize(
    ("named", "permitted"),
    [
        ((), (PUBLIC, OTHER)),
        ((PUBLIC,), (PUBLIC, OTHER)),
        (("192.168.1.5",), (PUBLIC, OTHER, *PRIVATE)),
        (("127.0.0.1", PUBLIC), (PUBLIC, OTHER, *PRIVATE, *LOCAL)),
    ],
)
def test_private_addresses_are_dialled_in_private_swarms_only(
    named: tuple[str, ...], permitted: tuple[str, ...]
) -> None:
    policy = DialPolicy(named)
    everything = (PUBLIC, OTHER, *PRIVATE, *LOCAL, *NOBODY)
    assert {host for host in everything if policy.permits(host, now_s=0.0)} == set(permitted)


def test_a_public_host_where_no_peer_answers_is_dialled_a_few_times_a_minute() -> None:
    policy = DialPolicy(())
    dials = 0
    for at_s in range(100):
        if policy.permits(PUBLIC, now_s=at_s / 10):
            policy.note_try(PUBLIC, now_s=at_s / 10)
            dials += 1
    assert dials == MAX_TRIES
    assert policy.permits(OTHER, now_s=10.0) and policy.permits(PUBLIC, now_s=TRIES_WINDOW_S)


def test_one_with_peers_is_dialled_as_often_as_needed() -> None:
    policy = DialPolicy(())
    for _ in range(4 * MAX_TRIES):
        assert policy.permits(PUBLIC, now_s=0.0)
        policy.note_try(PUBLIC, now_s=0.0)
        policy.note_peer(PUBLIC)


def test_so_many_hosts_are_remembered_and_no_more() -> None:
    policy = DialPolicy(())
    for _ in range(MAX_TRIES):
        policy.note_try(PUBLIC, now_s=0.0)
    for number in range(MAX_HOSTS):
        policy.note_try(f"{1 + number // 256}.{number % 256}.0.1", now_s=0.0)
    assert policy.permits(PUBLIC, now_s=0.0)


@given(st.ip_addresses())
def test_every_address_has_a_reach(address: object) -> None:
    assert reach_of(str(address)) in Reach
