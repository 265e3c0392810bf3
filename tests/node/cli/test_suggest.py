"""`cosine-node suggest` prints the advice for this machine, and `plan` measures it as well."""

import json

import pytest

from cosine_node.advice import measurement
from cosine_node.advice.measurement import POOL_TOKENS, model_needs
from cosine_node.advice.suggestions import MeasuredMachine
from cosine_node.chains.planning import ModelNeeds
from tests.node.cli.conftest import Run

GIB = 2**30
MEASURE = measurement.measure_machine
HERE = MeasuredMachine(
    cores=8, memory_bytes=8 * GIB, read_bytes_per_s=32.0 * GIB, drafters=(("zoo:x", 0.002, GIB),)
)


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sizes(model: str, dtype: str) -> ModelNeeds:
        return model_needs(model, dtype, POOL_TOKENS)[0]

    # In this process, which has loaded PyTorch already.
    monkeypatch.setattr(measurement, "target_sizes", sizes)
    monkeypatch.setattr(measurement, "measure_machine", lambda *_: HERE)


def test_it_prints_commands_with_what_to_expect(run: Run) -> None:
    told = run("suggest", "--target", "zoo:target")
    assert told.code == 0
    assert "8 cores, 8.0 GiB of memory free, no card; a token takes 31.2 to 87.5 ms for each GiB" in told.out
    assert "1. It starts a network" in told.out and "   cosine-node verify --model zoo:target\n" in told.out
    found = json.loads(run("suggest", "--target", "zoo:target", "--json").out)
    assert [one["command"].split()[1] for one in found["suggestions"]] == ["verify", "draft"]
    assert found["machine"]["cores"] == 8 and found["reasons"] == []


def test_a_plan_takes_the_measured_figures_of_this_machine(run: Run) -> None:
    made = json.loads(run("plan", "--model", "zoo:target", "--machine", "desk=here", "--json").out)
    (stage,) = made["stages"]
    assert stage["machine"] == "desk" and stage["pass_s"] == pytest.approx(
        stage["weights_bytes"] / 32 / GIB, rel=0.2
    )


@pytest.mark.thorough
def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "measure_machine", MEASURE)
    found = measurement.measure_machine("zoo:target")
    assert found.read_bytes_per_s > 1e8 and found.memory_bytes > 0
    (model, token_s, memory_bytes), *_ = found.drafters
    assert model == "zoo:draft-general" and token_s is not None and 0 < token_s < 1 and memory_bytes > 1 << 20


def test_a_machine_without_pytorch_is_told_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "measure_machine", MEASURE)
    monkeypatch.setattr("cosine_node.advice.measurement.find_spec", lambda _: None)
    told = run("suggest", "--target", "zoo:target")
    assert (told.code, "pip install . './node[torch]'" in told.err) == (2, True)
