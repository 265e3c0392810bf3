"""Runs the examination in a child process, which may crash or hang, and passes on what it finds as it is found."""

import asyncio
import json
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from tempfile import TemporaryFile
from typing import IO, Any, Final

from cosine_node.doctor.examination import DISK, Step
from cosine_node.doctor.finding import CheckStatus, Finding, failure
from cosine_node.serving.node_options import JoinPlan

EXAMINATION: Final = "cosine_node.doctor.examination"


async def examine(plan: JoinPlan, tell: Callable[[Finding], None], say: Callable[[str], None]) -> None:
    """Examine this machine for a plan. `tell` takes each finding, `say` the sentence of what is being done.

    The child and all that it started are killed if it says nothing for too long, or the caller stops waiting.
    """
    # A running node makes what learns.
    plan = replace(plan, nodes=tuple(replace(node, make_learner=None) for node in plan.nodes))
    step = Step("examination", 60.0, DISK)
    is_verbose = logging.getLogger().isEnabledFor(logging.DEBUG)
    with TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", EXAMINATION),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if is_verbose else errors,
            start_new_session=True,
            limit=1 << 20,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(pickle.dumps((is_verbose, plan)))
            process.stdin.close()
            while True:
                async with asyncio.timeout(step.within_s):
                    line = await process.stdout.readline()
                told = _read(line)
                if "step" in told:
                    step = Step(**told["step"])
                elif "finding" in told:
                    tell(Finding(**told["finding"] | {"status": CheckStatus(told["finding"]["status"])}))
                elif "said" in told:
                    say(told["said"])
                elif "is_done" in told:
                    return
                elif not line:
                    tell(failure(step.what, _why_ended(await process.wait(), errors), step.mend))
                    return
        except TimeoutError:
            tell(failure(step.what, f"no answer within {step.within_s:g} s", step.mend))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _read(line: bytes) -> dict[str, Any]:
    """The object in a line; empty for what a library has printed."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _why_ended(code: int, errors: IO[bytes]) -> str:
    """A clause that says how the child ended, with the last line that it printed."""
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    how = f"it ended by signal {-code}" if code < 0 else f"it ended with code {code}"
    return f"{how}: {lines[-1]}" if lines else how
