"""The swarm, the clocks and the tokenizers, judged by what a newcomer saw."""

from dataclasses import replace

import pytest

from cosine_node.doctor.finding import CheckStatus
from cosine_node.doctor.swarm import Neighbour, Neighbourhood, judge_clock, judge_swarm, judge_tokenizer
from cosine_protocol.records import ALL_TARGETS, Role
from tests.node.doctor.examined import NOW_S, looked_around

VERIFIER = Neighbour(role="verifier", peer_id="v", target="t", target_digest="aa", tokenizer_digest="bb", reason="")
DRAFTER = replace(VERIFIER, role="drafter", peer_id="d")
SILENT = replace(VERIFIER, peer_id="w", reason="no answer")
OTHER = replace(VERIFIER, peer_id="o", target_digest="cc")


@pytest.mark.parametrize(
    ("nodes", "role", "statuses"),
    [
        ((VERIFIER, DRAFTER), None, ["ok", "ok"]),
        ((VERIFIER, SILENT, DRAFTER), None, ["ok", "ok"]),
        ((SILENT, DRAFTER), None, ["failure", "ok"]),
        ((VERIFIER, OTHER, DRAFTER), None, ["warning", "ok"]),
        ((VERIFIER,), None, ["ok", "warning"]),
        ((VERIFIER, replace(DRAFTER, reason="gone")), None, ["ok", "warning"]),
        ((), Role.DRAFTER, ["failure", "warning"]),
        ((), Role.VERIFIER, ["ok", "warning"]),
    ],
)
def test_a_swarm_is_judged_by_role(nodes: tuple[Neighbour, ...], role: Role | None, statuses: list[str]) -> None:
    found = judge_swarm(Neighbourhood(nodes=nodes), network="main", target="t", role=role)
    assert [finding.status for finding in found] == statuses
    assert all(finding.fix for finding in found if finding.status != "ok")


@pytest.mark.parametrize(
    ("nodes", "statuses", "part"),
    [
        ((VERIFIER, DRAFTER), ["ok", "ok"], "1 of 1 of t reached"),
        ((DRAFTER,), ["failure", "ok"], "verifies t"),
        ((VERIFIER, replace(OTHER, target="u")), ["ok"], "2 targets are served, t, u"),
        ((), ["failure"], "lists a target"),
    ],
)
def test_without_a_target_the_only_one_is_judged(
    nodes: tuple[Neighbour, ...], statuses: list[str], part: str
) -> None:
    found = judge_swarm(Neighbourhood(nodes=nodes), network="main", target=ALL_TARGETS, role=None)
    assert ([finding.status for finding in found], part in found[0].found) == (statuses, True)


def test_a_network_that_cannot_be_joined_is_one_failure() -> None:
    (found,) = judge_swarm(Neighbourhood(problem="no answer"), network="main", target="t", role=None)
    assert (found.status, "no answer" in found.found) == (CheckStatus.FAILURE, True)


def test_a_probe_sees_nodes_and_the_dates_of_records_that_peers_keep() -> None:
    seen = looked_around(roles=(Role.VERIFIER, Role.DRAFTER))
    assert [(node.role, node.reason) for node in seen.nodes] == [("verifier", ""), ("drafter", "")]
    assert [dates[1:] for dates in seen.dates] == [(NOW_S, NOW_S + 300)] * 2
    assert {dates[0] for dates in seen.dates} == {node.peer_id for node in seen.nodes}
    assert judge_clock(seen).status is CheckStatus.OK


def test_a_probe_says_why_a_node_is_silent() -> None:
    (node,) = looked_around(roles=(Role.VERIFIER,), silent=True).nodes
    assert node.reason == "no such peer"


@pytest.mark.parametrize(
    ("now_s", "status", "part"),
    [
        (1000.0, "ok", "between 5 min behind and 0 s ahead"),
        (1200.0, "ok", "between 100 s behind and 3 min ahead"),
        (980.0, "warning", "at least 20 s behind"),
        (930.0, "failure", "at least 70 s behind"),
        (1304.0, "ok", "between 0 s behind"),
        (1310.0, "failure", "at least 10 s ahead"),
    ],
)
def test_a_clock_is_judged_within_what_records_tell(now_s: float, status: str, part: str) -> None:
    found = judge_clock(Neighbourhood(dates=(("a", 1000.0, 1300.0),), now_s=now_s))
    assert (found.status, part in found.found) == (status, True), found


@pytest.mark.parametrize("lie_s", [-1e6, 1e6])
def test_one_peer_that_lies_makes_no_clock_look_wrong(lie_s: float) -> None:
    dates = (("a", 1000.0, 1300.0), ("b", 1000.0 + lie_s, 1300.0 + lie_s), ("c", 990.0, 1290.0))
    assert judge_clock(Neighbourhood(dates=dates, now_s=1010.0)).status is CheckStatus.OK


def test_certificates_alone_tell_of_a_clock_far_behind() -> None:
    assert judge_clock(Neighbourhood(born_s=(1000.0,), now_s=0.0)).status is CheckStatus.FAILURE
    assert judge_clock(Neighbourhood(born_s=(1000.0,), now_s=5000.0)).status is CheckStatus.SKIPPED
    assert judge_clock(Neighbourhood(now_s=5000.0)).status is CheckStatus.SKIPPED


@pytest.mark.parametrize(
    ("digest", "nodes", "role", "status"),
    [
        ("bb", (VERIFIER,), Role.DRAFTER, "ok"),
        ("ee", (VERIFIER,), Role.DRAFTER, "warning"),
        ("ee", (VERIFIER,), Role.VERIFIER, "failure"),
        ("", (VERIFIER,), Role.DRAFTER, "skipped"),
        ("bb", (DRAFTER,), Role.DRAFTER, "skipped"),
    ],
)
def test_tokenizers_are_compared_with_the_verifiers(
    digest: str, nodes: tuple[Neighbour, ...], role: Role, status: str
) -> None:
    assert judge_tokenizer("m", digest, Neighbourhood(nodes=nodes), role=role).status == status
