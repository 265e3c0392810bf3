"""The doctor on a real machine and in a real swarm: nothing wrong, and several things wrong at once."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cosine_node import zoo
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


@pytest.mark.thorough
def test_each_fault_is_found_beside_the_others(swarm: Swarm, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(zoo.folder("target"), tmp_path / "model"))
    with (folder / "tokenizer.json").open("a") as file:
        file.write("\n")
    swapped = f"{swarm.boot.maddr.rsplit('/', 1)[0]}/{swarm.verifier.peer_id}"
    taken = swarm.boot.maddr.rsplit("/p2p/", 1)[0]
    code, told, found = doctor(
        *("--role", "verifier", "--model", str(folder), "--target", "zoo:target", "--host-maddr", taken),
        *("--initial-peers", swarm.boot.maddr, swapped, "--initial-peers", "nonsense"),
    )
    failures = {what for what, check in found.items() if check["result"] == "failure"}
    assert failures == {
        f"port {taken}",
        f"--initial-peers {swapped}",
        "--initial-peers nonsense",
        f"tokenizer of {folder}",
    }
    assert (code, told["failures"]) == (1, len(failures))
    assert all(found[what]["fix"] for what in failures)
    assert swarm.boot.peer_id in found[f"--initial-peers {swapped}"]["fix"]
