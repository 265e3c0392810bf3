"""A report for others tells nothing of who or where somebody is."""

import pytest

from cosine_node.doctor.finding import failure, fine
from cosine_node.doctor.report import Redaction, report_of
from cosine_protocol.__version__ import __version__

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
OTHER = "12D3KooWQYV9dGMFoRzNStwpXztXaBUjtPqi6aU76ZgUriHhKust"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"/ip4/8.8.8.8/tcp/4001/p2p/{PEER} answers", "<public address, tcp, of <peer 1>> answers"),
        ("/ip4/192.168.1.7/udp/4001/quic-v1", "<private address, udp>"),
        ("/dns4/node.example.org/tcp/443", "<named address, tcp>"),
        ("/ip4/nonsense", "<address>"),
        ("10.0.0.1, 127.0.0.1 and ::1", "<private address>, <loopback address> and <loopback address>"),
        ("2001:4860:4860::8888", "<public address>"),
        ("GET http://me.example.org:8000/v1?key=secret failed", "GET <url> failed"),
        ("31.4 GiB free for /home/somebody/.cache/cosine-p2p", "31.4 GiB free for <path>"),
        ("`chmod 600 /home/somebody/key`.", "`chmod 600 <path>`."),
        ("in ~/secret/place", "in <path>"),
        ("torch 2.13.0, 12 tokens/s, a/b", "torch 2.13.0, 12 tokens/s, a/b"),
        ("12:30:59", "12:30:59"),
    ],
)
def test_addresses_peers_and_paths_are_replaced_by_what_they_are(text: str, told: str) -> None:
    assert Redaction()(text) == told


def test_a_peer_has_one_number_in_a_whole_report() -> None:
    redact = Redaction()
    assert [redact(f"{PEER} and {OTHER}"), redact(OTHER)] == ["<peer 1> and <peer 2>", "<peer 2>"]


def test_the_report_has_the_machine_and_each_finding() -> None:
    told = report_of([fine("identity", PEER), failure("disk", "/data is full", "Free 1 GiB.")])
    assert f"CoSine P2P {__version__}" in told and "torch " in told
    assert told.endswith("- ok: identity: <peer 1>\n- failure: disk: <path> is full -> Free 1 GiB.\n")
