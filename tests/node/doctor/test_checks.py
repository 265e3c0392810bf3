"""Checks run side by side: none stops another, however it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from cosine_node.doctor.checks import Check, run_checks
from cosine_node.doctor.finding import CheckStatus, Finding, failure, fine
from cosine_node.simulation.virtual_loop import run_virtual


def check(what: str, look: Callable[[], Awaitable[Sequence[Finding]]], deadline_s: float = 5.0) -> Check:
    return Check(what, look, deadline_s, if_stuck=f"Look at {what}.")


def after(delay_s: float, what: str) -> Check:
    async def look() -> Sequence[Finding]:
        await asyncio.sleep(delay_s)
        return [fine(what, "well")]

    return check(what, look)


async def hang() -> Sequence[Finding]:
    await asyncio.Event().wait()
    return []


async def crash() -> Sequence[Finding]:
    raise ZeroDivisionError("so it is")


def examined(*checks: Check) -> tuple[list[Finding], list[str], float]:
    """All findings, the order in which they were told, and how long it took."""
    told: list[str] = []

    async def run() -> tuple[list[Finding], float]:
        findings = await run_checks(checks, lambda finding: told.append(finding.what))
        return findings, asyncio.get_running_loop().time()

    findings, took_s = run_virtual(run())
    return findings, told, took_s


def test_findings_come_in_order_and_are_told_as_they_come() -> None:
    findings, told, took_s = examined(after(3, "a"), after(1, "b"), after(2, "c"))
    assert [finding.what for finding in findings] == ["a", "b", "c"]
    assert (told, took_s) == (["b", "c", "a"], 3.0)


def test_a_check_that_hangs_is_a_failure_that_says_what_to_look_at() -> None:
    (good, stuck), told, took_s = examined(after(1, "a"), check("disk", hang))
    assert good.status is CheckStatus.OK
    assert stuck == failure("disk", "no answer within 5 s", "Look at disk.")
    assert (told, took_s) == (["a", "disk"], 5.0)


def test_a_check_that_crashes_is_a_failure_with_its_text() -> None:
    (crashed, good), _, _ = examined(check("ports", crash), after(1, "a"))
    assert (crashed.what, crashed.status, good.status) == ("ports", CheckStatus.FAILURE, CheckStatus.OK)
    assert "ZeroDivisionError: so it is" in crashed.found


def test_a_failure_must_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="what to do"):
        failure("port", "it is taken", "")
