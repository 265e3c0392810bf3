"""`cosine-node doctor` as a command: what it takes from options and files, what it prints, how it exits."""

import json
from pathlib import Path
from typing import Any

import pytest

from cosine_node.cli import main
from cosine_node.doctor import checks
from cosine_node.doctor.checks import Check, DoctorOptions, Facts
from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_protocol.records import Role

GOOD = [fine("python", "Python 3.13.1"), warning("clock", "20 s behind \x1b[2J", "Set it.")]
BAD = failure("port", "another program listens there", "Choose another with --host-maddr.")


def run(monkeypatch: pytest.MonkeyPatch, findings: list[Finding], *arguments: str) -> tuple[int, DoctorOptions]:
    """The exit code, and what was examined; the findings are given."""
    seen: list[DoctorOptions] = []

    def checks_of(facts: Facts) -> list[Check]:
        async def look() -> list[Finding]:
            return findings

        seen.append(facts.options)
        return [Check("all", look, 5.0, if_stuck="Wait.")]

    monkeypatch.setattr(checks, "checks_of", checks_of)
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    return int(exit_.value.code or 0), seen[0]


def test_people_get_a_line_a_finding_and_the_fix_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, [*GOOD, BAD], "doctor")[0] == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "ok      python: Python 3.13.1",
        "warning clock: 20 s behind \N{REPLACEMENT CHARACTER}[2J",
        "        -> Set it.",
        "failure port: another program listens there",
        "        -> Choose another with --host-maddr.",
        "3 checks: 1 ok, 1 warning, 1 failure.",
    ]


def test_what_is_to_be_done_comes_last(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, [BAD, *reversed(GOOD), skipped("swarm", "nobody to ask")], "doctor")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "skipped", "warning", "->", "failure", "->", "4"]


def test_machines_get_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, [*GOOD, BAD], "doctor", "--json")[0] == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["failures"], err) == (1, "")
    assert told["checks"][2] == {"what": BAD.what, "result": "failure", "found": BAD.found, "fix": BAD.fix}


def test_warnings_alone_are_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, GOOD, "doctor")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "role", "models", "target"),
    [
        ((), None, (), "zoo:target"),
        (("--model", "ngram"), Role.DRAFTER, ("ngram",), "zoo:target"),
        (("--role", "drafter"), Role.DRAFTER, ("zoo:draft-general",), "zoo:target"),
        (("--role", "verifier"), Role.VERIFIER, ("zoo:target",), "zoo:target"),
        (("--role", "verifier", "--model", "a/b"), Role.VERIFIER, ("a/b",), "a/b"),
        (("--role", "drafter", "--model", "a/b", "--target", "c/d"), Role.DRAFTER, ("a/b",), "c/d"),
    ],
)
def test_it_examines_what_join_would_do(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], role: Role, models: tuple[str, ...], target: str
) -> None:
    _, options = run(monkeypatch, GOOD, "doctor", *arguments)
    assert (options.role, options.models, options.target) == (role, models, target)


def test_the_file_of_join_is_the_doctors_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[join]\nrole = "drafter"\nmodel = "ngram"\nmodle = 1\n[jion]\n')
    _, options = run(monkeypatch, GOOD, "doctor")
    assert (options.role, options.models, options.unknown) == (Role.DRAFTER, ("ngram",), ("[jion]", "join.modle"))


@pytest.mark.parametrize("named", [False, True])
def test_a_broken_file_does_not_stop_the_doctor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: bool
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[join")
    before: tuple[Any, ...] = ("--config", str(file)) * named
    code, options = run(monkeypatch, GOOD, *before, "doctor")
    assert (code, options.config, options.is_config_named) == (0, file, named)


def test_an_unknown_role_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(("doctor", "--role", "cook"))
    assert exit_.value.code == 2
    assert "drafter, verifier" in capsys.readouterr().err
