"""Runs the examination in a child process, which may crash or hang, and reports its findings immediately."""

import asyncio
import json
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any, Final

from cosine_node.doctor.examination import DISK, Step
from cosine_node.doctor.finding import CheckStatus, Finding, failure
from cosine_node.serving.options import JoinPlan

EXAMINATION: Final = "cosine_node.doctor.examination"


async def examine(plan: JoinPlan, tell: Callable[[Finding], None], say: Callable[[str], None]) -> None:
    """Examine this machine for a plan. `tell` takes each finding, `say` a sentence about the current work.

    The child and its children are killed after a timeout or on cancellation.
    """
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
                    code = await process.wait()
                    errors.seek(0)
                    output = errors.read().decode(errors="replace").strip()
                    how = f"it ended by signal {-code}" if code < 0 else f"it ended with code {code}"
                    last = f": {output.splitlines()[-1].strip()}" if output else ""
                    tell(failure(step.what, f"{how}{last}", step.mend))
                    return
        except TimeoutError:
            tell(failure(step.what, f"no answer within {step.within_s:g} s", step.mend))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _read(line: bytes) -> dict[str, Any]:
    """The object in a line. Empty for output of a library."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
