"""The Python of vLLM is refused in a sentence."""

import sys
from pathlib import Path

import pytest

from cosine_engine.vllm.environment import VllmOptions
from cosine_protocol.errors import UsageError


def script(folder: Path, text: str) -> Path:
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_a_missing_python_and_one_without_vllm_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs a Python with vLLM 0\.32\.0, and .* is missing: run `make vllm`"):
        VllmOptions(tmp_path / "python").find()
    with pytest.raises(UsageError, match="has no vLLM: install"):
        VllmOptions(Path(sys.executable)).find()
    (tmp_path / "text").write_text("no program")
    with pytest.raises(UsageError, match="cannot be run as the Python of vLLM"):
        VllmOptions(tmp_path / "text").find()


def test_other_versions_are_refused_and_builds_of_a_tested_one_are_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has vLLM 9\.1\.2, and --engine vllm is tested with 0\.32\.0 only"):
        VllmOptions(script(tmp_path, "echo 9.1.2")).find()
    python = script(tmp_path, "echo 0.32.0+cu130")
    assert VllmOptions(python).find() == python


def test_there_is_at_least_one_process() -> None:
    with pytest.raises(UsageError, match="must be at least 1"):
        VllmOptions(tensor_parallel=0).find()
