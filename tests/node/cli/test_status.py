"""`cosine status`: table, JSON, and advice if nothing is found."""

import io
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from cosine_cli import status
from cosine_cli.status import as_object, picture, problem_of
from cosine_p2p import network
from cosine_p2p.access import Access
from cosine_p2p.survey import NodeSight, Survey, Surveyor
from cosine_p2p.trust.denied_peers import Ban, BanFile
from cosine_p2p.trust.evidence import EvidenceFile
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role
from tests.cosine_p2p.plain_swarm import PlainSwarm, account
from tests.cosine_p2p.samples import identity_of, record_of, stage_offer
from tests.cosine_p2p.trust.test_audit_rule import AUTHOR, piece_of
from tests.node.cli.conftest import Run, Told

BOOT = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"


def sight(number: int = 1, *, reason: str = "", **record: Any) -> NodeSight:
    return NodeSight(
        record=record_of(identity_of(number), now_s=1000.0, **record),
        rtt_s=None if reason else 0.0421,
        requests=None if reason else 3,
        passes=None if reason else 70,
        uptime_s=None if reason else 12.5,
        reason=reason,
    )


def survey(*nodes: NodeSight, problem: str = "") -> Survey:
    return Survey(target="zoo:target", nodes=nodes, problem=problem)


def drawn(seen: Survey, bans: Sequence[Ban] = ()) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(picture(seen, "main", bans, columns=200))
    return out.getvalue()


def test_a_line_of_the_table_is_a_node() -> None:
    verifier = sight(role=Role.VERIFIER, numerics="bfloat16", pass_us=12_340, capacity_requests=8, expertise=())
    lines = drawn(survey(verifier, sight(2, model="ngram"))).splitlines()
    for part in ("verifier", verifier.record.peer_id[-8:], "bfloat16", "3/8", "12.3", "42.1", "yes"):
        assert part in lines[1]
    assert "ngram" in lines[2] and "code" in lines[2]
    assert lines[3] == "1 verifier and 1 drafter of zoo:target in the network main."
    assert "emulated" not in lines[0]


def test_a_silent_node_shows_its_announced_load_and_the_reason() -> None:
    silent = sight(2, reason="no answer within 4 s", load_requests=2, emulated="60/6@10")
    lines = drawn(survey(sight(role=Role.VERIFIER), silent)).splitlines()
    assert "2/4" in lines[2] and lines[2].split()[-1] == "no"
    assert "emulated" in lines[0] and "60/6@10" in lines[2]
    assert lines[3] == f"…{silent.record.peer_id[-8:]}: no answer within 4 s"
    assert "1 not reached" in lines[4]


def test_who_is_banned_is_shown_with_the_end_and_the_reason() -> None:
    bans = [Ban(peer_id=f"peer {n:08}", until_s=1e9 + 60 * n, why="it floods") for n in range(10)]
    lines = drawn(survey(sight()), bans).splitlines()
    assert lines[2] == "…00000002: banned here until 2001-09-09T01:48+00:00: it floods"
    assert lines[10] == "10 are banned here; `cosine-node ban` shows all."


def test_stages_are_shown_with_their_layers_and_the_coverage_of_those_that_answer() -> None:
    verifier = sight(role=Role.VERIFIER)
    held = [
        sight(number, role=Role.STAGE, stage=stage_offer(first, 8, layers=8, busy_permille=200))
        for number, first in ((2, 0), (3, 4))
    ]
    seen = survey(verifier, *held)
    text = drawn(seen)
    assert "layers 0:8" in text and "20 %" in text and "0 ▁▁▁▁▂▂▂▂ 8, each held by 1 to 2 stages" in text
    assert "1 verifier, 0 drafters and 2 stages of zoo:target in the network main." in text
    assert as_object(seen, "main", ())["coverage"][0]["holders"] == [1, 1, 1, 1, 2, 2, 2, 2]
    (expected,) = as_object(seen, "main", ())["outlook"]
    (stage,) = expected["stages"]
    assert stage["layers"] == "0:8" and expected["tokens_per_s"] == pytest.approx(1 / expected["pass_s"])
    assert f"A pass over 1 stage takes {1e3 * expected['pass_s']:.0f} ms" in text
    assert "cosine-node head " in problem_of(survey(*held), "main")
    gone = survey(verifier, replace(held[0], reason="gone"), held[1])
    assert "Layers 0:4 of 8 are held by no stage." in drawn(gone)


def test_strangers_cannot_steer_the_terminal() -> None:
    evil = sight(model="\x1b[2J[red]x", reason="\x1b]0;title\x07")
    assert "\x1b" not in drawn(survey(evil)) and "[red]x" in drawn(survey(evil))


@pytest.mark.parametrize(
    ("seen", "part"),
    [
        (survey(), "check --network, --target and --initial-peers"),
        (survey(sight()), "cosine-node verify --model zoo:target"),
        (survey(sight(role=Role.VERIFIER, reason="gone")), "No verifier can be reached"),
        (survey(problem="the DHT did not answer in time"), "cosine-node doctor"),
    ],
)
def test_what_stands_in_the_way_is_said_with_the_next_step(seen: Survey, part: str) -> None:
    assert part in problem_of(seen, "main")
    assert problem_of(survey(sight(role=Role.VERIFIER)), "main") == ""


def test_without_a_target_the_network_is_told_by_its_targets_and_of_the_only_one_every_node() -> None:
    one = (sight(role=Role.VERIFIER, numerics="float32/float16"), sight(2))
    several = (*one, sight(3, role=Role.VERIFIER, target="a/model", numerics="bfloat16"))
    heading, *rows = drawn(replace(survey(*one), target=ALL_TARGETS)).splitlines()
    assert heading.split() == ["target", "verifiers", "drafters", "stages", "numerics"]
    assert rows[0].split() == ["someone/model", "1", "1", "0", "float32/float16"]
    assert rows[-1] == "1 verifier and 1 drafter of someone/model in the network main."
    rows = drawn(replace(survey(*several), target=ALL_TARGETS)).splitlines()[1:]
    assert [row.split() for row in rows[:2]] == [
        ["a/model", "1", "0", "0", "bfloat16"],
        ["someone/model", "1", "1", "0", "float32/float16"],
    ]
    assert rows[2:] == ["2 targets in the network main; --target NAME shows the nodes of one."]
    told = as_object(replace(survey(*several), target=ALL_TARGETS), "main", ())
    assert (told["target"], told["problem"]) == (None, "")
    assert [(each["name"], each["verifiers"], each["numerics"]) for each in told["targets"]] == [
        ("a/model", 1, ["bfloat16"]),
        ("someone/model", 1, ["float32/float16"]),
    ]
    assert "lists a target" in problem_of(replace(survey(), target=ALL_TARGETS), "main")


@pytest.fixture(autouse=True)
def _looks_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosine_p2p.survey.LOOK_AGAIN_S", (0.0,))


@pytest.fixture
def run_status(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command over an in-memory swarm of one verifier, or of nobody."""

    def told(*arguments: str, is_anybody: bool = True) -> Told:
        def joining(peers: tuple[str, ...], *, access: Access, **_: Any) -> Callable[[], Awaitable[PlainSwarm]]:
            assert peers == (BOOT,)

            async def join() -> PlainSwarm:
                swarm = PlainSwarm()
                if is_anybody:
                    await swarm.announce(1, account(), role=Role.VERIFIER)
                return swarm

            return join

        monkeypatch.setattr(network, "joining", joining)
        return run("status", BOOT, "--target", "someone/model", *arguments)

    return told


def test_the_command_prints_a_table_or_one_object_with_convicted_and_banned_peers(run_status: Run) -> None:
    told = run_status()
    assert (told.code, "1 verifier and 0 drafters of someone/model" in told.out) == (0, True)
    assert told.err.startswith("Looking for peers ...\nLooking for nodes of someone/model ...\n")
    assert [status.stage_of(asked, "m") for asked in range(3)] == [
        *("Looking for nodes of m", "Asking 1 node", "Asking 2 nodes")
    ]
    EvidenceFile().add(piece_of(3, 3))
    BanFile().ban("peer", until_s=1e10, why="spam")
    told = run_status("--json", "--network", "mine")
    assert f"{AUTHOR.peer_id[-8:]} was convicted" in told.err
    seen = json.loads(told.out)
    assert (seen["target"], seen["network"], seen["problem"]) == ("someone/model", "mine", "")
    (node,) = seen["nodes"]
    assert set(node) >= set(NodeRecord.__dataclass_fields__) and node["requests"] == 2
    assert seen["bans"] == {"peer": {"until": "2286-11-20T17:46+00:00", "why": "spam", "floods": 0}}


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_nobody_found_is_a_failure_with_the_next_step(run_status: Run, arguments: tuple[str, ...]) -> None:
    told = run_status(*arguments, is_anybody=False)
    sentence = json.loads(told.out)["problem"] if arguments else told.err
    assert "No node serves 'someone/model'" in sentence and "cosine-node verify" in sentence
    assert (told.code, bool(told.out)) == (1, bool(arguments))


def test_watching_tells_again_and_again_until_interrupted(run_status: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async def a_few(self: Any) -> Survey:
        nonlocal looks
        looks += 1
        if looks == 4:
            raise KeyboardInterrupt
        return replace(survey(sight()), target=f"look {looks}")

    monkeypatch.setattr(status, "WATCH_EVERY_S", 0.0)
    monkeypatch.setattr(Surveyor, "survey", a_few)
    told = run_status("--watch", "--json", is_anybody=False)
    assert told.code == 130
    assert [json.loads(line)["target"] for line in told.out.splitlines()] == ["look 1", "look 2", "look 3"]
