"""Scenarios as values, as files, and as reproducible runs."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cosine_lab.simulation.running import run_scenario
from cosine_lab.simulation.scenario import Scenario, read_scenario, scenario_of
from cosine_protocol.errors import UsageError

SMALL = Scenario(
    name="small", verifiers=2, drafters=2, clients=2, requests=2, max_new_tokens=12, vocab_tokens=16, seed=5
)
MAP: dict[str, Any] = {
    "client_cities": ["london"],
    "verifier_cities": ["tokyo"],
    "drafter_cities": ["tokyo", "london"],
}


def test_a_file_is_read_like_the_fields_it_names(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('rtt-ms = 60\nfidelities = [0.5, 1]\ndomains = ["code"]\nmax_drafters = 2\n')
    wanted = Scenario(name="mine", rtt_ms=60, fidelities=(0.5, 1), domains=("code",), max_drafters=2)
    assert read_scenario(str(file)) == wanted


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"colour": "red"}, "has no 'colour'"),
        ({"verifiers": 0}, "verifiers lies between 1 and"),
        ({"verifiers": True}, "verifiers cannot be True"),
        ({"loss": float("nan")}, "loss lies between"),
        ({"rtt_ms": "20"}, "rtt_ms cannot be '20'"),
        ({"fidelities": [0.5, 2]}, "fidelities lies between 0 and 1, not 2"),
        ({"fidelities": []}, "at least one"),
        ({"source": "dreams"}, "scripted, traces, not 'dreams'"),
        ({"profile": "fast"}, "is not an emulation profile"),
        ({"profile": "60/6@20"}, "is rtt_ms, not part of"),
        ({"profile": "h200:70B"}, "verifier first"),
        ({"profile": "h200:70B/abacus:1B"}, "Unknown device 'abacus'"),
        ({"client_cities": ["london"]}, "names client_cities, verifier_cities and drafter_cities, or none"),
        ({**MAP, "drafter_cities": ["atlantis"]}, "Unknown city 'atlantis'"),
    ],
)
def test_what_means_nothing_is_refused_in_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        scenario_of(fields)


def test_one_scenario_twice_is_one_run_and_another_seed_another() -> None:
    lossy = replace(SMALL, requests=1, jitter_ms=3.0, loss=0.05, faults="random", temperature=0.8)
    first, again, other = (run_scenario(s) for s in (lossy, lossy, replace(lossy, seed=6)))
    assert first.digest == again.digest != other.digest
    assert first.results == again.results
    assert first.nodes == again.nodes


@pytest.mark.thorough
def test_the_digest_does_not_depend_on_the_order_of_hashing() -> None:
    code = (
        "from cosine_lab.simulation.running import run_scenario\n"
        "from cosine_lab.simulation.scenario import Scenario\n"
        "print(run_scenario(Scenario(verifiers=2, drafters=3, clients=3, requests=2, max_new_tokens=10,"
        " faults='random', jitter_ms=2.0, loss=0.02, seed=3)).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 32
