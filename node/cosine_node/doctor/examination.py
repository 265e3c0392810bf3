"""Runs checks side by side, each with a deadline, and lets none of them stop the others."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from cosine_node.doctor.finding import Finding, failure

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to look at. `if_stuck` says what to do if no answer comes within `deadline_s`."""

    what: str
    look: Callable[[], Awaitable[Sequence[Finding]]]
    deadline_s: float
    if_stuck: str


async def examine(checks: Sequence[Check], tell: Callable[[Finding], None]) -> list[Finding]:
    """All findings in the order of the checks; each is told as soon as it is there. Never raises for a check."""

    async def one(check: Check) -> list[Finding]:
        findings = await _findings(check)
        for finding in findings:
            tell(finding)
        return findings

    return [finding for some in await asyncio.gather(*map(one, checks)) for finding in some]


async def _findings(check: Check) -> list[Finding]:
    try:
        async with asyncio.timeout(check.deadline_s):
            return list(await check.look())
    except TimeoutError:
        return [failure(check.what, f"no answer within {check.deadline_s:g} s", check.if_stuck)]
    except Exception as error:
        LOG.debug("the check %s failed", check.what, exc_info=True)
        found = f"the check itself failed: {type(error).__name__}: {error}"
        return [failure(check.what, found, "Run `cosine-node --verbose doctor` and report what it prints.")]
