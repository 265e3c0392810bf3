"""`bench here --family`: a whole swarm is started, asked over links of several lengths, and ended."""

import json

import pytest

from tests.e2e.nodes import run


# `tests/lab/experiments/test_here.py` measures a swarm in every check.
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_family_is_started_and_measured() -> None:
    done = run(
        *("bench", "here", "--family", "toy", "--drafter", "ngram", "--dtype", "float32", "--json"),
        *("--prompts", "2", "--tokens", "8", "--repeats", "1", "--temperature", "0.8", "--rtt-ms", "0"),
        *("--rtt-ms", "60"),
        timeout_s=240.0,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    near, far = ([row for row in result["rows"] if row["emulated_rtt_ms"] == rtt_ms] for rtt_ms in (0.0, 60.0))
    assert [len(near), len(far)] == [2, 2]
    assert all(row["is_identical"] for row in result["rows"])
    # Eight tokens cannot come sooner than a round trip.
    assert all(ms >= 60 / 8 for row in far for ms in row["ms_per_token"].values())
    assert result["setup"]["drafter_models"] == ["ngram"]
    assert result["setup"]["verifier_options"] == ["--dtype", "float32"]
    assert [verifier["emulated"] for verifier in result["setup"]["verifiers"]] == [""]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_node_that_cannot_start_is_a_sentence_and_ends_the_others() -> None:
    done = run(*("bench", "here", "--family", "toy", "--drafter", "zoo:nobody"), timeout_s=240.0)
    assert done.returncode == 1
    error, *words = done.stderr[done.stderr.index("Error: ") :].splitlines()
    assert error == "Error: drafters ended before it was ready."
    assert any("no embedded model is called 'nobody'" in word for word in words)
