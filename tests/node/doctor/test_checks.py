"""Checks run side by side: none stops another, however it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from cosine_lab.simulation.virtual_loop import run_virtual
from cosine_node import zoo
from cosine_node.doctor.checks import Check, Facts, run_checks
from cosine_node.doctor.finding import CheckStatus, Finding, failure, fine
from cosine_node.doctor.machine import EngineFacts, MachineFacts
from cosine_node.engine.pool_size import TokenBytes
from cosine_node.models.engine_kind import EngineChoice
from cosine_protocol.records import Role
from tests.node.doctor.examined import doctor_options, findings


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


@pytest.mark.parametrize(("cuda_devices", "needs_base"), [((), True), ((("GPU", 20 << 30),), False)])
def test_memory_of_this_machine_holds_the_libraries_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda_devices: tuple[tuple[str, int], ...], needs_base: bool
) -> None:
    async def machine(base_bytes: int) -> MachineFacts:
        return MachineFacts(
            base_bytes=base_bytes,
            free_bytes=20 << 30,
            cuda_devices=cuda_devices,
            engines={str(zoo.folder("draft-code")): EngineFacts(token=TokenBytes(1000), context_tokens=512)},
        )

    def needed(base_bytes: int) -> str:
        monkeypatch.setattr(Facts, "machine", lambda _: machine(base_bytes))
        options = doctor_options(tmp_path, role=Role.DRAFTER, models=("zoo:draft-code",), engine=EngineChoice())
        _, memory = findings(options, "fit of zoo:draft-code")
        return memory.found.partition(" of ")[0]

    assert (needed(5 << 30).startswith("it takes about 5.0")) is needs_base
    assert (needed(0) == needed(5 << 30)) is not needs_base
