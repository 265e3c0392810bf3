"""`cosine-node doctor`, which is `join --check`: plans, output and exit codes."""

import json
from collections.abc import Callable

import pytest

from cosine_node.doctor import examine as module
from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_node.serving.options import JoinPlan
from cosine_protocol.records import ALL_TARGETS, Role
from tests.node.cli.conftest import Run

GOOD = [fine("identity", "12D3mine"), warning("clock", "20 s behind \x1b[2J", "Set it.")]
BAD = failure("port", "another program listens there", "Choose another with --host-maddr.")

Examined = Callable[..., list[JoinPlan]]


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Examined:
    """Replaces the examination by given findings, and returns the list of examined plans."""

    def given(*findings: Finding) -> list[JoinPlan]:
        seen: list[JoinPlan] = []

        async def examine(plan: JoinPlan, tell: Callable[[Finding], None], say: Callable[[str], None]) -> None:
            seen.append(plan)
            say("Looking")
            for finding in findings:
                tell(finding)

        monkeypatch.setattr(module, "examine", examine)
        return seen

    return given


def test_people_get_a_line_a_finding_and_the_fix_below_what_is_to_be_done_last(
    run: Run, examined: Examined
) -> None:
    examined(BAD, *reversed(GOOD), skipped("swarm", "nobody to ask"))
    told = run("doctor")
    assert (told.code, told.out.splitlines()) == (
        1,
        [
            "ok      identity: 12D3mine",
            "skipped swarm: nobody to ask",
            "warning clock: 20 s behind \N{REPLACEMENT CHARACTER}[2J",
            "        -> Set it.",
            "failure port: another program listens there",
            "        -> Choose another with --host-maddr.",
            "4 checks: 1 ok, 1 warning, 1 failure, 1 skipped.",
        ],
    )


def test_machines_get_one_object_and_warnings_alone_are_a_success(run: Run, examined: Examined) -> None:
    examined(*GOOD, BAD)
    told = run("join", "--check", "--json")
    shown = json.loads(told.out)
    assert (told.code, shown["failures"], told.err) == (1, 1, "")
    assert shown["checks"][2] == {"what": BAD.what, "result": "failure", "found": BAD.found, "fix": BAD.fix}
    examined(*GOOD)
    assert run("doctor").code == 0


@pytest.mark.parametrize(
    ("arguments", "role", "models", "target"),
    [
        ("", None, [], ALL_TARGETS),
        ("--target a/b", None, [], "a/b"),
        ("--model ngram", Role.DRAFTER, ["ngram"], "zoo:target"),
        ("--role verifier --model a/b", Role.VERIFIER, ["a/b"], "a/b"),
        ("--role stage --model a/b --layers 0:4", Role.STAGE, ["a/b"], "a/b"),
        ("--role drafter --model a/b --model ngram --target c/d", Role.DRAFTER, ["a/b", "ngram"], "c/d"),
    ],
)
def test_it_examines_what_join_would_do(
    run: Run, examined: Examined, arguments: str, role: Role | None, models: list[str], target: str
) -> None:
    seen = examined(*GOOD)
    assert run("doctor", *arguments.split()).code == run("join", "--check", *arguments.split()).code == 0
    one, other = seen
    assert one == other
    assert ([node.source.model for node in one.nodes], one.target) == (models, target)
    assert {node.role for node in one.nodes} == ({role} if role else set())
