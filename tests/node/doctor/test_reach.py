"""Checks of connections to other nodes and of reachability."""

import asyncio
import socket
from pathlib import Path

import pytest

from cosine_node.doctor.finding import CheckStatus, Finding
from cosine_node.doctor.reach import Way, connect, judge_reachability
from cosine_node.doctor.swarm import look_at_peers
from cosine_node.serving.options import NetworkOptions
from cosine_p2p.access import Access
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.config import TransportConfig
from cosine_p2p.transport.full.daemon import start_daemon
from tests.cosine_p2p.samples import identity_of

PEER, OTHER = identity_of(1).peer_id, identity_of(2).peer_id
LOOPBACK = "/ip4/127.0.0.1/tcp"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nonsense", "this is not an address"),
        ("/ip4/192.0.2.1/tcp/1", "does not say whose"),
        ("/ip4/192.0.2.1/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "not the peer id of a node"),
        (f"{LOOPBACK}/1/p2p/{PEER}", "nothing listens there"),
    ],
)
def test_an_address_where_nobody_can_answer_is_a_failure_that_names_the_option(text: str, found: str) -> None:
    finding = connect(text, option="--relay")
    assert isinstance(finding, Finding) and finding.status is CheckStatus.FAILURE
    assert finding.what == f"--relay {text}" and found in finding.found and "--relay" in finding.fix


def test_a_host_that_swallows_packets_is_given_up_and_a_name_may_be_known_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def swallow(*_: object, **__: object) -> None:
        raise TimeoutError("timed out")

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def found(host: str) -> str:
        finding = connect(f"/{host}/tcp/1/p2p/{PEER}", option="--initial-peers")
        assert isinstance(finding, Finding)
        return finding.found

    monkeypatch.setattr(socket, "create_connection", swallow)
    assert "a firewall drops" in found("ip4/192.0.2.1")
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert found("dns4/boot.example") == "the name is not known here: Name or service not known"


@pytest.mark.network
@pytest.mark.timeout(120)
def test_a_node_that_answers_is_told_from_another_one_and_from_what_is_none(tmp_path: Path) -> None:
    async def run() -> dict[str, Finding]:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        config = TransportConfig(identity_file=identity_file, host_maddrs=(f"{LOOPBACK}/0",))
        node = await start_daemon(config, host_maddrs=config.host_maddrs, peers=())
        web = await asyncio.start_server(refuse, "127.0.0.1", 0)
        try:
            (maddr,) = await node.visible_maddrs()
            port = web.sockets[0].getsockname()[1]
            named = {
                "node": maddr,
                "other": maddr.replace(node.peer_id, OTHER),
                "web": f"{LOOPBACK}/{port}/p2p/{PEER}",
                "relayed": f"{maddr}/p2p-circuit/p2p/{OTHER}",
            }
            network = NetworkOptions(
                access=Access(), identity_file=None, initial_peers=tuple(named.values()), relays=("nonsense",)
            )
            found = {finding.what: finding async for finding in look_at_peers(network)}
            assert found["--relay nonsense"].status is CheckStatus.FAILURE
            assert found["network daemon"].status is CheckStatus.OK
            assert node.peer_id in found[f"--initial-peers {named['other']}"].fix
            return {name: found[f"--initial-peers {maddr}"] for name, maddr in named.items()}
        finally:
            web.close()
            await node.close()

    identity_file = tmp_path / "identity"
    load_identity(identity_file)
    found = asyncio.run(run())
    assert {name: finding.status for name, finding in found.items()} == {
        "node": CheckStatus.OK,
        "other": CheckStatus.FAILURE,
        "web": CheckStatus.FAILURE,
        "relayed": CheckStatus.OK,
    }
    assert found["other"].found.startswith("another node answers there, 12D3KooW")
    assert "is not a peer" in found["web"].found


ANY, LAN, PUBLIC, HERE = "0.0.0.0", "192.168.1.5", "8.8.8.8", "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "announced", "relays", "ways", "status", "part"),
    [
        (ANY, [], ["r"], [Way(LAN, PUBLIC)], CheckStatus.OK, "through 1 relay"),
        (ANY, [PUBLIC], [], [Way(LAN, PUBLIC)], CheckStatus.OK, "cannot be tested from this side"),
        (ANY, [LAN], [], [Way(LAN, PUBLIC)], CheckStatus.WARNING, "no peer outside"),
        (HERE, [], [], [], CheckStatus.WARNING, "only this machine"),
        (ANY, [], [], [Way(PUBLIC, PUBLIC)], CheckStatus.OK, "public address"),
        (ANY, [], [], [Way(LAN, f"8.8.8.{n}") for n in range(3)], CheckStatus.WARNING, "public peers, 3 of 4"),
        (ANY, [], [], [Way(LAN, "192.168.1.1")], CheckStatus.OK, "own network"),
        (ANY, [], [], [], CheckStatus.SKIPPED, "nothing is known"),
    ],
)
def test_reachability_is_judged_by_what_can_be_known(
    host: str, announced: list[str], relays: list[str], ways: list[Way], status: CheckStatus, part: str
) -> None:
    found = judge_reachability(
        host_maddrs=[f"/ip4/{host}/tcp/4001"],
        announce_maddrs=[f"/ip4/{each}/tcp/4001" for each in announced],
        relays=relays,
        ways=ways,
    )
    assert (found.status, part in found.found) == (status, True)
    assert bool(found.fix) == (status is CheckStatus.WARNING)


def test_a_machine_without_ipv4_is_told_so_and_enough_peers_are_not_too_few() -> None:
    ways = [Way(LAN, f"8.8.8.{number}") for number in range(4)]
    found = judge_reachability(host_maddrs=[], announce_maddrs=[], relays=[], ways=ways, local=[LAN])
    assert "too few" not in found.found
    found = judge_reachability(
        host_maddrs=["/ip6/::/tcp/4001"], announce_maddrs=[], relays=[], ways=[], local=["2600:1::1"]
    )
    assert (found.status, "only IPv6 addresses" in found.found) == (CheckStatus.WARNING, True)
