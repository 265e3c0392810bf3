"""The doctor on a real machine and in a real swarm."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Swarm
from tests.e2e.nodes import run

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]


def doctor(*arguments: str) -> tuple[int, dict[str, Any], dict[str, dict[str, str]]]:
    """The exit code, what was printed, and the findings by name."""
    done = run("doctor", "--json", *arguments)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    return done.returncode, told, {check["what"]: check for check in told["checks"]}


@pytest.mark.thorough
def test_a_machine_that_can_join_has_no_failures(swarm: Swarm, tmp_path: Path) -> None:
    place = ("--host-maddr", "/ip4/127.0.0.1/tcp/0", "--identity", str(tmp_path / "key"))
    code, told, found = doctor("--role", "drafter", "--model", "zoo:draft-code", *place, *swarm.peers)
    assert (code, told["failures"]) == (0, 0), told
    assert not (tmp_path / "key").exists()
    for what in (
        "packages",
        "network daemon",
        "identity",
        "swarm: verifiers",
        "swarm: drafters",
        "clock",
    ):
        assert found[what]["result"] == "ok", found[what]
    assert found[f"--initial-peers {swarm.boot.maddr}"]["found"] == "the node answers"
    assert found["drafter zoo:draft-code"]["result"] == "ok"
