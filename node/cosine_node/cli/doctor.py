"""`cosine-node doctor`: what keeps this machine from joining, and what to do about it."""

import json
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from cosine_node.cli.configuration import commands_of, default_config_file, read_config, unknown_names
from cosine_node.cli.options import (
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    AsJson,
    Place,
    Relays,
    ServedModelOptions,
    access_of,
    option,
    parse_role,
    several,
    takes_options,
)
from cosine_node.doctor.finding import CheckStatus, Finding
from cosine_node.terminal.interrupts import run_interruptibly
from cosine_node.terminal.printing import FAILURE_EXIT, printable
from cosine_node.terminal.waiting import WaitingLine, columns_of, telling_stages
from cosine_protocol.errors import UsageError
from cosine_protocol.records import ALL_TARGETS, Role

if TYPE_CHECKING:
    from cosine_node.doctor.checks import DoctorOptions

MARKS: Final = {
    CheckStatus.OK: ("ok      ", "green"),
    CheckStatus.SKIPPED: ("skipped ", "dim"),
    CheckStatus.WARNING: ("warning ", "yellow"),
    CheckStatus.FAILURE: ("failure ", "bold red"),
}
"""The word before a finding and its colour, all of one width, so that what was found stands in one column.

In the order of printing: what is to be done stands last, where it is still on the screen.
"""

UNTROUBLED: Final = (CheckStatus.OK, CheckStatus.SKIPPED)
"""Findings that nobody has to do anything about."""


@takes_options
def doctor(
    context: typer.Context,
    place: Place,
    served: ServedModelOptions,
    role: Annotated[str | None, option("role", "ROLE", "What the machine is to be: drafter or verifier.")] = None,
    relay: Relays = None,
    as_json: AsJson = False,
) -> None:
    """Look for what keeps a node or client from working here; give it the options `join` would get."""
    from cosine_node import zoo
    from cosine_node.doctor.checks import DoctorOptions

    models = several(served.model)
    chosen = parse_role(role) if role is not None else Role.DRAFTER if models else None
    if chosen is Role.STAGE:
        raise UsageError("The doctor examines drafters and verifiers; a stage needs what a verifier needs.")
    default_models = {None: (), Role.DRAFTER: (DEFAULT_DRAFTER,), Role.VERIFIER: (DEFAULT_TARGET,)}
    # As `join` has it: a verifier's model is its target.
    is_own_target = chosen is Role.VERIFIER and models
    named_config: Path | None = context.find_root().params.get("config")
    try:
        unknown = unknown_names(read_config(named_config), commands_of(context))
    except UsageError:
        # A check of its own says that the file cannot be read.
        unknown = []
    options = DoctorOptions(
        initial_peers=several(place.initial_peers),
        relays=several(relay),
        host_maddrs=place.host_maddrs,
        announce_maddrs=several(place.announce_maddr),
        network=access_of(place.network, place.swarm, None).network,
        swarm_file=place.swarm,
        # A client takes the target that the network serves.
        target=served.target
        or (ALL_TARGETS if chosen is None else models[0] if is_own_target else zoo.default_target(*models[:1])),
        role=chosen,
        models=models or default_models[chosen],
        identity=place.identity,
        engine=served.engine_choice(chosen),
        config=named_config or default_config_file(),
        is_config_named=named_config is not None,
        unknown=tuple(unknown),
    )
    findings = run_interruptibly(_examine(options, is_quiet=as_json))
    counts = Counter(finding.status for finding in findings)
    if as_json:
        checks = [{"what": f.what, "result": f.status, "found": f.found, "fix": f.fix} for f in findings]
        sys.stdout.write(json.dumps({"checks": checks, "failures": counts[CheckStatus.FAILURE]}) + "\n")
    else:
        counted = ", ".join(f"{counts[status]} {status}" for status in CheckStatus if counts[status])
        sys.stdout.write(f"{len(findings)} checks: {counted}.\n")
    if counts[CheckStatus.FAILURE]:
        raise typer.Exit(FAILURE_EXIT)


async def _examine(options: "DoctorOptions", *, is_quiet: bool) -> list[Finding]:
    """All findings, the worst last; those without a problem are printed as they come, unless quiet."""
    from cosine_node.doctor.checks import examine

    line = WaitingLine(sys.stderr)

    def tell(finding: Finding) -> None:
        if not is_quiet and finding.status in UNTROUBLED:
            line.clear()
            _print(finding)

    # Elsewhere than on a terminal the findings themselves show that it goes on.
    is_shown = bool(columns_of(sys.stderr))
    async with telling_stages(line, lambda: "Looking for what is wrong") if is_shown else nullcontext():
        findings = await examine(options, tell)
    line.end()
    findings.sort(key=lambda finding: list(MARKS).index(finding.status))
    for finding in findings:
        if not is_quiet and finding.status not in UNTROUBLED:
            _print(finding)
    return findings


def _print(finding: Finding) -> None:
    """Print a finding and, on a line of its own, what to do about it."""
    console = Console(highlight=False, soft_wrap=True)
    mark, style = MARKS[finding.status]
    console.print(Text.assemble((mark, style), (f"{finding.what}: ", "bold"), printable(finding.found)))
    if finding.fix:
        console.print(Text.assemble(" " * len(mark), (f"-> {printable(finding.fix)}", style)))
