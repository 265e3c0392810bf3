"""Checks of the swarm, the clock and the tokenizer."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cosine_node.doctor import swarm
from cosine_node.doctor.finding import CheckStatus
from cosine_node.doctor.swarm import (
    Dates,
    Neighbourhood,
    judge_clock,
    judge_swarm,
    judge_tokenizer,
    neighbourhood_of,
)
from cosine_node.serving.discover_service import DiscoverService
from cosine_node.serving.options import NetworkOptions
from cosine_p2p.access import Access
from cosine_p2p.survey import NodeSight
from cosine_protocol.discover import DISCOVER
from cosine_protocol.records import ALL_TARGETS, Role, cell_name, seal_record
from tests.cosine_p2p.plain_swarm import PlainSwarm, account
from tests.cosine_p2p.samples import identity_of, record_of
from tests.scenes import in_virtual_time

TARGET, NETWORK, NOW_S = "zoo:target", "test", 1_800_000_000.0


def sight(number: int, role: Role, *, reason: str = "", target: str = "t", digest: bytes = b"a") -> NodeSight:
    record = record_of(identity_of(number), now_s=NOW_S, role=role, target=target)
    return NodeSight(record=replace(record, target_digest=digest * 32, tokenizer_digest=b"b" * 32), reason=reason)


VERIFIER, DRAFTER = sight(1, Role.VERIFIER), sight(2, Role.DRAFTER)
SILENT = sight(3, Role.VERIFIER, reason="no answer")
OTHER = sight(4, Role.VERIFIER, digest=b"c")


@pytest.mark.parametrize(
    ("nodes", "role", "statuses"),
    [
        ((VERIFIER, SILENT, DRAFTER), None, ["ok", "ok"]),
        ((SILENT, DRAFTER), None, ["failure", "ok"]),
        ((VERIFIER, OTHER, DRAFTER), None, ["warning", "ok"]),
        ((VERIFIER, sight(2, Role.DRAFTER, reason="gone")), None, ["ok", "warning"]),
        ((), Role.DRAFTER, ["failure", "warning"]),
        ((), Role.VERIFIER, ["ok", "warning"]),
    ],
)
def test_a_swarm_is_judged_by_role(nodes: tuple[NodeSight, ...], role: Role | None, statuses: list[str]) -> None:
    found = judge_swarm(Neighbourhood(nodes=nodes), network="main", target="t", role=role)
    assert [finding.status for finding in found] == statuses
    assert all(finding.fix for finding in found if finding.status != "ok")


@pytest.mark.parametrize(
    ("nodes", "statuses", "part"),
    [
        ((VERIFIER, DRAFTER), ["ok", "ok"], "1 of 1 of t reached"),
        ((DRAFTER,), ["failure", "ok"], "verifies t"),
        ((VERIFIER, sight(4, Role.VERIFIER, target="u")), ["ok"], "2 targets are served, t, u"),
        ((), ["failure"], "lists a target"),
    ],
)
def test_without_a_target_the_only_one_is_judged(
    nodes: tuple[NodeSight, ...], statuses: list[str], part: str
) -> None:
    found = judge_swarm(Neighbourhood(nodes=nodes), network="main", target=ALL_TARGETS, role=None)
    assert ([finding.status for finding in found], part in found[0].found) == (statuses, True)


@in_virtual_time
async def looked_around(roles: Sequence[Role], *, silent: bool = False) -> Neighbourhood:
    """The view of a new client on one node for each role."""
    plain = PlainSwarm()
    records: dict[str, bytes] = {}

    async def read(cell: str) -> Sequence[bytes]:
        return [records[cell]] if cell in records else []

    for number, role in enumerate(roles, start=1):
        record = record_of(identity_of(number), now_s=NOW_S, role=role, target=TARGET)
        record = replace(record, target_digest=record.facts.digest())
        cell = cell_name(network=NETWORK, role=role, target=TARGET, prefix="")
        records[cell] = seal_record(record, identity_of(number), key=cell)
        await plain.announce(number, None if silent else account(), role=role, target=TARGET)
    await plain.network.join("keeper").serve(DISCOVER, DiscoverService(read).handle)
    seen = await neighbourhood_of(plain, network=NETWORK, target=TARGET, peer_ids=["keeper", "nobody"])
    await plain.close()
    return seen


@pytest.mark.parametrize(
    ("uses_lan", "found", "status", "part"),
    [
        (True, (f"/ip4/192.168.1.2/tcp/4001/p2p/{identity_of(1).peer_id}",), "ok", "1 node of the network 'home'"),
        (True, (), "skipped", "no node of the network 'home' answers there"),
        (False, (), "skipped", "--no-lan"),
    ],
)
def test_the_local_network_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, uses_lan: bool, found: tuple[str, ...], status: str, part: str
) -> None:
    async def neighbours(network: str) -> tuple[str, ...]:
        return found

    monkeypatch.setattr(swarm, "find_neighbours", neighbours)
    network = NetworkOptions(access=Access(network="home", uses_lan=uses_lan), identity_file=None)
    maddrs, finding = asyncio.run(swarm.look_in_local_network(network))
    assert (maddrs, finding.status, part in finding.found) == (found, status, True)


def test_a_newcomer_sees_nodes_and_the_dates_of_records_that_peers_keep() -> None:
    seen = looked_around((Role.VERIFIER, Role.DRAFTER))
    assert [(node.record.role, node.reason) for node in seen.nodes] == [("verifier", ""), ("drafter", "")]
    assert [dates[1:] for dates in seen.dates] == [(NOW_S, NOW_S + 300)] * 2
    assert {dates[0] for dates in seen.dates} == {node.record.peer_id for node in seen.nodes}
    assert judge_clock(seen.dates, now_s=NOW_S).status is CheckStatus.OK
    (node,) = looked_around((Role.VERIFIER,), silent=True).nodes
    assert node.reason == "no such peer"


@pytest.mark.parametrize(
    ("now_s", "status", "part"),
    [
        (1200.0, "ok", "between 100 s behind and 3 min ahead"),
        (980.0, "warning", "at least 20 s behind"),
        (930.0, "failure", "at least 70 s behind"),
        (1304.0, "ok", "between 0 s behind"),
        (1310.0, "failure", "at least 10 s ahead"),
    ],
)
def test_a_clock_is_judged_within_what_records_tell(now_s: float, status: str, part: str) -> None:
    found = judge_clock((("a", 1000.0, 1300.0),), now_s=now_s)
    assert (found.status, part in found.found, bool(found.fix)) == (status, True, status != "ok"), found


@pytest.mark.parametrize("lie_s", [-1e6, 1e6])
def test_one_peer_that_lies_makes_no_clock_look_wrong(lie_s: float) -> None:
    dates: Dates = (("a", 1000.0, 1300.0), ("b", 1000.0 + lie_s, 1300.0 + lie_s), ("c", 990.0, 1290.0))
    assert judge_clock(dates, now_s=1010.0).status is CheckStatus.OK
    assert judge_clock((), now_s=1010.0).status is CheckStatus.SKIPPED


@pytest.mark.parametrize(
    ("digest", "nodes", "role", "status"),
    [
        (b"b" * 32, (VERIFIER,), Role.DRAFTER, "ok"),
        (b"e" * 32, (VERIFIER,), Role.DRAFTER, "warning"),
        (b"e" * 32, (VERIFIER,), Role.VERIFIER, "failure"),
        (None, (VERIFIER,), Role.DRAFTER, "skipped"),
        (b"b" * 32, (DRAFTER,), Role.DRAFTER, "skipped"),
    ],
)
def test_tokenizers_are_compared_with_the_verifiers(
    digest: bytes | None, nodes: tuple[NodeSight, ...], role: Role, status: str
) -> None:
    assert judge_tokenizer("m", digest, Neighbourhood(nodes=nodes), role=role).status == status
