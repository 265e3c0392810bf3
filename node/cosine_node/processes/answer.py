"""The answer of a module that runs in a process of its own, which is ended where it takes too long."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def answer_of(
    module: str,
    *arguments: str,
    told: object = None,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The object that a module prints as its last line, in JSON; it reads what it is `told` from stdin.

    `environment` is added to that of this process. Blocks meanwhile. Raises `TimeoutError` where it does not end in
    time, `ValueError` where it gives no answer, with the first line of its errors, and `OSError` where no process
    can be started.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            input=json.dumps(told).encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=None if environment is None else {**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    lines, errors = done.stdout.splitlines(), done.stderr.decode("utf-8", "replace").splitlines()
    answer = json.loads(lines[-1]) if lines and done.returncode >= 0 else None
    if not isinstance(answer, dict):
        raise ValueError(next(iter(errors), f"{module} gave no answer"))
    return answer
