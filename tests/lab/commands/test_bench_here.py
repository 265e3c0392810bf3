"""`cosine-node bench here`: the choice of the measured swarm, and the command that repeats a measurement."""

import json
from pathlib import Path
from typing import Any

import pytest

from cosine_engine.zoo import family
from cosine_lab.commands.bench_here import MeasuredSwarm, measure_here
from cosine_lab.experiments import here
from cosine_protocol.errors import UsageError
from tests.lab.experiments.test_here import row


def swarm(**told: Any) -> MeasuredSwarm:
    running: dict[str, Any] = {
        "initial_peers": ("ADDRESS",),
        "family": None,
        "drafters": (),
        "verifier_options": {},
    }
    return MeasuredSwarm(network="n", target="zoo:target", **(running | told))


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"family": "toy"}, "omit --initial-peers"),
        ({"family": "large", "initial_peers": ()}, "--family must be toy or smol"),
        ({"verifier_options": {"engine": "torch"}}, "--engine requires --family"),
        ({"on_cores": True}, "--cores starts a swarm"),
        ({"home": "zoo:draft-code"}, "--draft-model requires --cores"),
    ],
)
def test_what_does_not_go_together_is_refused(told: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        _ = swarm(**told).cast


def test_the_result_says_how_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started: the family's result is one row for each round trip."""

    async def run_family(cast: Any, connect: Any, options: here.HereOptions, *, rows: Any, say: Any) -> Any:
        assert cast.verifier_options == ("--engine", "llama")
        rows += [row(1.5, rtt_ms=rtt_ms) for rtt_ms in options.rtts_ms]
        setup = {"verifiers": [{"numerics": "gguf:Q4_1+llama.cpp"}]}
        return {"what": "", "setup": setup, "rows": rows, "findings": here.findings_of(rows, options.seed)}

    monkeypatch.setattr(here, "run_family", run_family)
    monkeypatch.setattr(family, "_smol_place", lambda name: tmp_path)
    measured = swarm(initial_peers=(), family="smol", verifier_options={"engine": "llama"})
    chosen = {"prompts": 3, "tokens": None, "temperatures": (0.0, 0.8), "rtts_ms": (0.0, 20.0), "seed": 12345678}
    measure_here(measured, chosen, quick=False, as_json=False, out=tmp_path)
    result = json.loads((tmp_path / "here.json").read_text("utf-8"))
    assert (result["name"], result["command"]) == (
        "here",
        "cosine-node bench here --family smol --engine llama --prompts 3 --seed 12345678 --temperature 0 "
        "--temperature 0.8 --rtt-ms 0 --rtt-ms 20",
    )
    assert "20 ms of emulated round trip, cosine: 1.50 times" in capsys.readouterr().out
