"""Runs the jobs of a client one after another and reports each; imports nothing that only this project has.

A program ends with `do(chat, stream, ...)`. A job is a function of a `Gateway` that says in a few words what was
shown, and raises where it was not. The report is a file of JSON lines, one for each job.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SHOWN_CHARACTERS = 300
"""Maximum length of an error in the report."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """The gateway that a client uses."""

    url: str
    model: str
    key: str

    @property
    def base(self) -> str:
        """The base URL of OpenAI's API."""
        return f"{self.url}/v1"


COMMAND_TIMEOUT_S = 300


def said_by(*command: str, folder: Path, may_fail: bool = False, **environment: str) -> str:
    """What a command writes to its standard output. Raises `RuntimeError` where it fails, unless it may.

    It has a home of its own, `folder`, and of our environment only where programs are: no setting of whoever runs
    this, and no key, reaches it.
    """
    places = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", "LANG": "C.UTF-8"}
    done = subprocess.run(
        command, cwd=folder, env=places | environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode and not (may_fail and done.stdout):
        told = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise RuntimeError(f"{command[0]} ended with {done.returncode} and said {told}")
    return done.stdout


Job = Callable[[Gateway], str]


def do(*jobs: Job) -> None:
    """Do each job and write the report that the command line names, after it `URL MODEL KEY`."""
    report, *place = sys.argv[1:]
    gateway = Gateway(*place)
    with Path(report).open("a", encoding="utf-8") as lines:
        for job in jobs:
            lines.write(json.dumps(outcome(job, gateway)) + "\n")
            lines.flush()


def outcome(job: Job, gateway: Gateway) -> dict[str, str]:
    """Run a job and return its name with `shown` or `failed`."""
    name = job.__name__.replace("_", " ")
    try:
        return {"job": name, "shown": job(gateway)}
    except Exception as error:
        said = str(error) or traceback.extract_tb(error.__traceback__)[-1].line
        told = " ".join(f"{type(error).__name__}: {said}".split())
        return {"job": name, "failed": told[:SHOWN_CHARACTERS]}
