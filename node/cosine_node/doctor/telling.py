"""Prints the findings of `join --check`, each with what to do about it."""

import json
import sys
from collections import Counter
from contextlib import nullcontext
from typing import Final

import typer
from rich.console import Console
from rich.text import Text

from cosine_node.doctor.finding import CheckStatus, Finding
from cosine_node.doctor.report import report_of
from cosine_node.serving.options import JoinPlan
from cosine_terminal.interrupts import run_interruptibly
from cosine_terminal.printing import FAILURE_EXIT, printable
from cosine_terminal.waiting import Stage, clear, columns_of, waiting_for

MARKS: Final = {
    CheckStatus.OK: ("ok      ", "green"),
    CheckStatus.SKIPPED: ("skipped ", "dim"),
    CheckStatus.WARNING: ("warning ", "yellow"),
    CheckStatus.FAILURE: ("failure ", "bold red"),
}
"""The word before a finding and its colour, in the order of printing: the worst last."""

UNTROUBLED: Final = (CheckStatus.OK, CheckStatus.SKIPPED)


def tell_findings(plan: JoinPlan, *, as_json: bool, as_report: bool = False) -> None:
    """Examine this machine for a plan, and print the findings. Exits with 1 if a check failed.

    With `as_report` they are a report for others.
    """
    findings = run_interruptibly(_examine(plan, is_quiet=as_json or as_report))
    counts = Counter(finding.status for finding in findings)
    if as_json:
        checks = [{"what": f.what, "result": f.status, "found": f.found, "fix": f.fix} for f in findings]
        sys.stdout.write(json.dumps({"checks": checks, "failures": counts[CheckStatus.FAILURE]}) + "\n")
    elif as_report:
        sys.stdout.write(report_of(findings))
    else:
        counted = ", ".join(f"{counts[status]} {status}" for status in CheckStatus if counts[status])
        sys.stdout.write(f"{len(findings)} checks: {counted}.\n")
    if counts[CheckStatus.FAILURE]:
        raise typer.Exit(FAILURE_EXIT)


async def _examine(plan: JoinPlan, *, is_quiet: bool) -> list[Finding]:
    """All findings, the worst last. Findings that need no action are printed immediately, unless quiet."""
    from cosine_node.doctor.examine import examine

    stage = Stage("Looking for what is wrong")
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if not is_quiet and finding.status in UNTROUBLED:
            clear(sys.stderr)
            _print(finding)

    # Without a terminal the findings themselves show progress.
    async with waiting_for(stage) if columns_of(sys.stderr) else nullcontext():
        await examine(plan, tell, stage.change)
    findings.sort(key=lambda finding: list(MARKS).index(finding.status))
    for finding in findings:
        if not is_quiet and finding.status not in UNTROUBLED:
            _print(finding)
    return findings


def _print(finding: Finding) -> None:
    console = Console(highlight=False, soft_wrap=True)
    mark, style = MARKS[finding.status]
    console.print(Text.assemble((mark, style), (f"{finding.what}: ", "bold"), printable(finding.found)))
    if finding.fix:
        console.print(Text.assemble(" " * len(mark), (f"-> {printable(finding.fix)}", style)))
