"""`cosine-node bench here`: whose swarm is measured, and with which words that can be done again."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_lab.commands.bench_here import MeasuredSwarm, measure_here
from cosine_lab.experiments import here, here_cores
from cosine_node.zoo import family
from cosine_protocol.errors import UsageError
from tests.lab.experiments.test_here import row


def swarm(**told: Any) -> MeasuredSwarm:
    """The running swarm of somebody, unless something else is told."""
    running: dict[str, Any] = {
        "initial_peers": ("ADDRESS",),
        "family": None,
        "drafters": (),
        "verifier_options": {},
    }
    return MeasuredSwarm(network="n", target="zoo:target", **(running | told))


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started or asked: each family's result is one row."""

    async def run_family(cast: Any, connect: Any, options: here.HereOptions, *, rows: Any, say: Any) -> Any:
        rows += [row(1.5, rtt_ms=rtt_ms) for rtt_ms in options.rtts_ms]
        setup = {"verifiers": [{"numerics": "gguf:Q4_1+llama.cpp"}]}
        return {"what": "", "setup": setup, "rows": rows, "findings": here.findings_of(rows, options.seed)}

    async def run_on_cores(
        cast: Any, home: Any, cores: Any, options: here.HereOptions, *, rows: Any, say: Any
    ) -> dict[str, Any]:
        rows += [{**row(1.5), "kind": kind, "near_ties": 0} for kind in ("chat", "coding")]
        return {"what": "", "setup": {}, "rows": rows, "findings": here_cores.findings_of(rows, options.seed)}

    monkeypatch.setattr(here, "run_family", run_family)
    monkeypatch.setattr(here_cores, "run_on_cores", run_on_cores)


def test_a_family_is_started_with_the_options_given() -> None:
    told = {"engine": "torch", "dtype": None, "threads": 1}
    cast = swarm(initial_peers=(), family="toy", drafters=("ngram",), verifier_options=told).cast
    assert cast is not None
    assert (cast.target, cast.emulation, cast.drafters) == ("zoo:target", None, ("ngram",))
    assert cast.verifier_options == ("--engine", "torch", "--threads", "1")


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"family": "toy"}, "leave --initial-peers out"),
        ({"family": "large", "initial_peers": ()}, "--family must be toy or smol"),
        ({"drafters": ("ngram",)}, "--drafter is for a swarm that is started here"),
        ({"verifier_options": {"engine": "torch"}}, "--engine is for a swarm that is started here"),
        ({"on_cores": True}, "--cores starts a swarm of its own"),
        ({"home": "zoo:draft-code"}, "--draft-model is for --cores"),
    ],
)
def test_what_does_not_go_together_is_refused(told: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        _ = swarm(**told).cast


@pytest.mark.usefixtures("_measured")
def test_what_was_measured_on_cores_has_a_file_and_a_command_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    measured = swarm(initial_peers=(), family="toy", on_cores=True, home="zoo:draft-code", drafters=("ngram",))
    measure_here(measured, {"prompts": 2}, quick=True, as_json=False, out=tmp_path)
    result = json.loads((tmp_path / "here_cores.json").read_text("utf-8"))
    assert result["command"] == (
        "cosine-node bench here --cores --family toy --draft-model zoo:draft-code --drafter ngram --quick "
        "--prompts 2"
    )
    out = capsys.readouterr().out
    assert "| chat   | 1" in out and "by kind" not in out


@pytest.mark.usefixtures("_measured")
@pytest.mark.parametrize(("name", "file"), [("toy", "here.json"), ("smol", "here_smol_llama.json")])
def test_the_result_says_how_to_repeat_it(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(family, "_smol_place", lambda name: tmp_path)
    chosen = {"prompts": 3, "tokens": None, "temperatures": (0.0, 0.8), "rtts_ms": (0.0, 20.0), "seed": 12345678}
    measure_here(
        swarm(initial_peers=(), family=name, verifier_options={"engine": "llama"}),
        chosen,
        quick=False,
        as_json=False,
        out=tmp_path,
    )
    result = json.loads((tmp_path / file).read_text("utf-8"))
    assert result["name"] == Path(file).stem
    assert result["command"] == (
        f"cosine-node bench here --family {name} --engine llama --prompts 3 --seed 12345678 --temperature 0 "
        "--temperature 0.8 --rtt-ms 0 --rtt-ms 20"
    )
    assert "20 ms of emulated round trip, cosine: 1.50 times" in capsys.readouterr().out


INTERRUPTED: Final = """
import asyncio, os, signal, sys
from cosine_lab.commands.bench_here import measure_here
from cosine_lab.experiments import here
from tests.lab.commands.test_bench_here import swarm
from tests.lab.experiments.test_here import row

async def run(connect, options, *, rows, say):
    rows.append(row(1.5))
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)

here.run = run
measure_here(swarm(), {}, quick=True, as_json="--json" in sys.argv, out=None)
"""


@pytest.mark.parametrize("as_json", [True, False])
def test_an_interrupt_prints_the_rows_so_far_and_is_no_success(as_json: bool) -> None:
    command = [sys.executable, "-c", INTERRUPTED, *(["--json"] if as_json else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")
    if as_json:
        told = json.loads(done.stdout)
        assert (len(told["rows"]), told["interrupted"]) == (1, True)
    else:
        assert "Temperature 0, cosine: 1.50 times plain decoding" in done.stdout
