"""Engines side by side: every measured figure is there, equal numerics agree, and what is missing is left out."""

import os
from dataclasses import replace
from typing import Any

import pytest

from cosine_engine.llama.library import is_installed
from cosine_lab.experiments import engines
from cosine_lab.experiments.engines import PASS_TOKENS, VLLM_PYTHON
from tests.lab.experiments.test_published import published

ENGINES = (
    *("llama.cpp Q4_0", "llama.cpp Q8_0", "transformers float32", "torch float32", "torch int4"),
    *("llama Q4_1", "vllm bfloat16"),
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("Processes are pinned to cores on Linux only.")
    if not is_installed():
        pytest.skip("llama.cpp is not installed.")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(VLLM_PYTHON, str(tmp_path_factory.mktemp("vllm") / "python"))
        return engines.run(replace(engines.EnginesOptions.quick(), engines=ENGINES), say=lambda _: None)


@pytest.mark.thorough
def test_each_engine_has_every_figure_and_one_that_is_missing_a_reason(result: dict[str, Any]) -> None:
    *installed, missing = ENGINES
    assert [row["engine"] for row in result["rows"]] == installed
    for row in result["rows"]:
        assert row["ms_per_token"].keys() == row["tokens_per_s"].keys() == {"1", "2"}
        assert list(row["pass_ms"]) == [str(length) for length in PASS_TOKENS]
        assert min(*row["tokens_per_s"].values(), *row["pass_ms"].values()) > 0
    assert list(result["findings"]["skipped"]) == [missing]
    assert "is missing" in result["findings"]["skipped"][missing]
    assert [line["engine"] for line in result["findings"]["engines"]] == installed


def test_the_published_table_follows_from_its_rows() -> None:
    file = published("engines")
    assert engines.findings_of(file["rows"])["engines"] == file["findings"]["engines"]
    assert file["command"].startswith("cosine-node bench engines")
