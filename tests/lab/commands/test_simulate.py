"""`cosine-node simulate`: one JSON object, exit codes, and sentences for what cannot be."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_lab.experiments.progress import ProgressLine
from cosine_lab.simulation import running
from cosine_lab.simulation.report import SimulationReport
from tests.node.cli.conftest import Run
from tests.thoroughness import quick_first

FIELDS: Final = {
    "digest",
    "virtual_seconds",
    "wall_seconds",
    "requests",
    "tokens",
    "tokens_per_s",
    "latency_ms",
} | {"mismatches", "hung", "leaked", "speedup_vs_plain", "bytes_per_token", "faults"}
SMALL: Final = """
verifiers = 2
drafters = 2
clients = 2
requests = 1
max_new_tokens = 10
vocab_tokens = 12
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return str(file)


def simulated(run: Run, *arguments: str) -> dict[str, Any]:
    told = run("simulate", *arguments, "--json")
    assert told.code == 0
    return dict(json.loads(told.out))


def test_one_json_object_with_every_promised_field(run: Run, small: str) -> None:
    fields = simulated(run, "--scenario", small)
    assert fields.keys() >= FIELDS
    assert (fields["requests"], fields["tokens"], fields["scenario"]) == (2, 20, "small")
    assert fields["latency_ms"].keys() == {"p50", "p95", "p99"}
    assert (fields["mismatches"], fields["hung"], fields["leaked"], fields["faults"]) == (0, 0, 0, {})


def test_options_replace_what_the_scenario_says(run: Run, small: str) -> None:
    changed = ["--nodes", "3", "--clients", "3", "--strategy", "plain", "--rtt_ms", "80", "--faults", "corrupt=1"]
    fields = simulated(run, "--scenario", small, *changed)
    assert (fields["requests"], fields["strategy"], fields["speedup_vs_plain"]) == (3, "plain", 1.0)
    assert fields["faults"] == {"corrupt": 1}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--scenario", "nowhere"], "There is no scenario 'nowhere'"),
        (["--nodes", "0"], "0 nodes are too few"),
        (["--loss", "1"], "loss lies between 0 and 0.5"),
        (["--strategy", "magic"], "There is no strategy 'magic'"),
        (["--seeds", "0:3"], "requires --scenario soak"),
        (["--scenario", "soak", "--seeds", "0:3", "--clients", "2"], "and no other option"),
        (["--scenario", "soak", "--seeds", "three"], "FIRST:END"),
    ],
)
def test_bad_usage_is_one_sentence(run: Run, arguments: list[str], sentence: str) -> None:
    told = run("simulate", *arguments)
    assert told.code == 2 and sentence in told.err and len(told.err.strip().splitlines()) == 1
    assert told.out == ""


@pytest.mark.parametrize("requests", quick_first([1, 3]))
def test_an_interrupt_prints_a_part(run: Run, monkeypatch: pytest.MonkeyPatch, small: str, requests: int) -> None:
    count = iter(range(1, 100))

    def interrupt_at(self: object) -> None:
        # In the run with the strategy itself, or in the plain one it is compared with.
        if next(count) == requests:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "advance", interrupt_at)
    told = run("simulate", "--scenario", small, "--json")
    fields = json.loads(told.out)
    assert (fields["interrupted"], fields["requests"]) == (True, min(2, requests))
    assert fields["speedup_vs_plain"] is None
    assert (told.code, told.err) == (130, "Interrupted: the results are partial.\n")


def test_what_must_never_be_ends_with_1(run: Run, monkeypatch: pytest.MonkeyPatch, small: str) -> None:
    real = running.run_scenario

    def spoilt(*arguments: Any, **options: Any) -> SimulationReport:
        report = real(*arguments, **options)
        wrong = replace(report.results[0], is_match=False)
        return replace(report, results=(wrong,), leaked=("a stream is open",))

    monkeypatch.setattr(running, "run_scenario", spoilt)
    told = run("simulate", "--scenario", small, "--json")
    fields = json.loads(told.out)
    assert (told.code, fields["leaked"], fields["mismatches"]) == (1, 1, 1)
