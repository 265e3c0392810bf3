"""The Python with vLLM, which has none of our packages: its location, and a check of vLLM's version."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from cosine_engine.load_options import VllmOptions
from cosine_protocol.errors import UsageError

CHILD: Final = Path(__file__).with_name("child.py")
TESTED: Final = ("0.32.0",)
"""The versions of vLLM whose inner interfaces `child.py` uses."""
VERSION_S: Final = 30.0


def find_python(options: VllmOptions) -> Path:
    """Return the Python with vLLM. Raises `UsageError` if it is missing, or has no vLLM of a tested version."""
    if min(options.tensor_parallel, options.pipeline_parallel) < 1:
        raise UsageError("--tensor-parallel and --pipeline-parallel must be at least 1.")
    if not hasattr(os, "memfd_create"):
        raise UsageError("--engine vllm runs on Linux only.")
    # Next to this environment.
    python = options.python or Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
    tested = " or ".join(TESTED)
    if not python.is_file():
        raise UsageError(
            f"--engine vllm needs a Python with vLLM {tested}, and {python} is missing: run `make vllm` in a "
            "clone of the repository, or name another with --vllm-python."
        )
    command = [str(python), "-E", str(CHILD), "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{python} cannot be run as the Python of vLLM: {error}.") from None
    found = done.stdout.strip()
    if done.returncode or not found:
        raise UsageError(f"{python} has no vLLM: install {tested} there, or name another with --vllm-python.")
    # The part after the plus names a build, for example for CUDA.
    if found.partition("+")[0] not in TESTED:
        raise UsageError(f"{python} has vLLM {found}, and --engine vllm is tested with {tested} only.")
    return python
