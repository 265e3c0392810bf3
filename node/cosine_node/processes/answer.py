"""Calls a function in a child process with a timeout."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from cosine_protocol.errors import CosineError, UsageError


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
