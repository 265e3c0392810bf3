"""`cosine-node doctor` as a command: what it takes from options and files, what it prints, how it exits."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cosine_node.doctor import checks
from cosine_node.doctor.checks import Check, DoctorOptions, Facts
from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_protocol.records import Role
from tests.node.cli.conftest import Run

GOOD = [fine("python", "Python 3.13.1"), warning("clock", "20 s behind \x1b[2J", "Set it.")]
BAD = failure("port", "another program listens there", "Choose another with --host-maddr.")


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[DoctorOptions]]:
    """Gives the findings, and returns what was examined since."""

    def given(*findings: Finding) -> list[DoctorOptions]:
        seen: list[DoctorOptions] = []

        async def look() -> list[Finding]:
            return list(findings)

        def checks_of(facts: Facts) -> list[Check]:
            seen.append(facts.options)
            return [Check("all", look, 5.0, if_stuck="Wait.")]

        monkeypatch.setattr(checks, "checks_of", checks_of)
        return seen

    return given


Examined = Callable[..., list[DoctorOptions]]


def test_people_get_a_line_a_finding_and_the_fix_below_what_is_to_be_done_last(
    run: Run, examined: Examined
) -> None:
    examined(BAD, *reversed(GOOD), skipped("swarm", "nobody to ask"))
    told = run("doctor")
    assert (told.code, told.out.splitlines()) == (
        1,
        [
            "ok      python: Python 3.13.1",
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
    told = run("doctor", "--json")
    shown = json.loads(told.out)
    assert (told.code, shown["failures"], told.err) == (1, 1, "")
    assert shown["checks"][2] == {"what": BAD.what, "result": "failure", "found": BAD.found, "fix": BAD.fix}
    examined(*GOOD)
    assert run("doctor").code == 0


@pytest.mark.parametrize(
    ("arguments", "role", "models", "target"),
    [
        ("", None, (), ""),
        ("--model ngram", Role.DRAFTER, ("ngram",), "zoo:target"),
        ("--role drafter", Role.DRAFTER, ("zoo:draft-general",), "zoo:target"),
        ("--role verifier", Role.VERIFIER, ("zoo:target",), "zoo:target"),
        ("--role verifier --model a/b", Role.VERIFIER, ("a/b",), "a/b"),
        ("--role drafter --model a/b --target c/d", Role.DRAFTER, ("a/b",), "c/d"),
    ],
)
def test_it_examines_what_join_would_do(
    run: Run, examined: Examined, arguments: str, role: Role, models: tuple[str, ...], target: str
) -> None:
    seen = examined(*GOOD)
    run("doctor", *arguments.split())
    assert (seen[0].role, seen[0].models, seen[0].target) == (role, models, target)


def test_the_file_of_join_is_the_doctors_too_and_a_broken_one_does_not_stop_it(
    run: Run, examined: Examined, tmp_path: Path
) -> None:
    seen, file = examined(*GOOD), tmp_path / "config.toml"
    file.write_text('[join]\nrole = "drafter"\nmodel = "ngram"\nmodle = 1\n[jion]\n')
    run("doctor")
    unknown = ("[jion]", "join.modle")
    assert (seen[0].role, seen[0].models, seen[0].unknown) == (Role.DRAFTER, ("ngram",), unknown)
    file.write_text("[join")
    assert run("doctor").code == run("--config", str(file), "doctor").code == 0
    assert [(each.config, each.is_config_named) for each in seen[1:]] == [(file, False), (file, True)]


def test_an_unknown_role_is_bad_usage(run: Run) -> None:
    told = run("doctor", "--role", "cook")
    assert (told.code, "drafter, verifier" in told.err) == (2, True)
