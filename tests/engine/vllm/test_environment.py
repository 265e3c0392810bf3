"""The Python of vLLM is refused in a sentence."""

import sys
from pathlib import Path

import pytest

from cosine_engine.load_options import VllmOptions
from cosine_engine.vllm.environment import find_python
from cosine_protocol.errors import UsageError


def script(folder: Path, text: str) -> Path:
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_a_missing_python_and_one_without_vllm_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs a Python with vLLM 0\.32\.0, and .* is missing: run `make vllm`"):
        find_python(VllmOptions(tmp_path / "python"))
    with pytest.raises(UsageError, match="has no vLLM: install"):
        find_python(VllmOptions(Path(sys.executable)))
    (tmp_path / "text").write_text("no program")
    with pytest.raises(UsageError, match="cannot be run as the Python of vLLM"):
        find_python(VllmOptions(tmp_path / "text"))


def test_other_versions_are_refused_and_builds_of_a_tested_one_are_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has vLLM 9\.1\.2, and --engine vllm is tested with 0\.32\.0 only"):
        find_python(VllmOptions(script(tmp_path, "echo 9.1.2")))
    python = script(tmp_path, "echo 0.32.0+cu130")
    assert find_python(VllmOptions(python)) == python


def test_there_is_at_least_one_process() -> None:
    with pytest.raises(UsageError, match="must be at least 1"):
        find_python(VllmOptions(tensor_parallel=0))
