"""Calls a function in a child process with a timeout."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from cosine_protocol.errors import CosineError, UsageError

LLAMA_PROCESS: Final = "cosine_engine.llama.process"


def answer_of(
    function: str, *arguments: object, timeout_s: float, environment: Mapping[str, str] | None = None
) -> Any:
    """Call `module:function` in a child process and return its result. Arguments and result are JSON. Blocks.

    `environment` is added to this process's. Raises `UsageError` for a `CosineError` of the function, `ValueError`
    with the first line of stderr if there is no answer, `TimeoutError`, and `OSError` if the process cannot start.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, function],
            input=json.dumps(arguments).encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=None if environment is None else {**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    lines, errors = done.stdout.splitlines(), done.stderr.decode("utf-8", "replace").splitlines()
    told = json.loads(lines[-1]) if lines and done.returncode >= 0 else None
    if not isinstance(told, dict):
        raise ValueError(next(iter(errors), f"{function} gave no answer"))
    if "error" in told:
        raise UsageError(told["error"])
    return told["answer"]


def ask_llama(question: str, file: Path, *told: object, timeout_s: float) -> Any:
    """Call a function of `LLAMA_PROCESS`. Raises `UsageError` if it fails."""
    try:
        return answer_of(f"{LLAMA_PROCESS}:{question}", str(file), *told, timeout_s=timeout_s)
    except TimeoutError:
        raise UsageError(f"llama.cpp did not answer within {timeout_s:.0f} s") from None
    except (OSError, ValueError):
        raise UsageError("llama.cpp crashed") from None


def main() -> None:
    """Call the function that the command line names with the arguments on stdin."""
    module, _, name = sys.argv[1].partition(":")
    try:
        told = {"answer": getattr(import_module(module), name)(*json.load(sys.stdin))}
    except CosineError as error:
        told = {"error": str(error)}
    # On a separate line after the output of libraries.
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
