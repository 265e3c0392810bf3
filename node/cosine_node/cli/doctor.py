"""`cosine-node doctor`: what keeps this machine from joining, and what to do about it."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from cosine_node.cli.configuration import unknown_names
from cosine_node.cli.events import hosts, several
from cosine_node.cli.join import (
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    Device,
    Dtype,
    Models,
    Quantize,
    TargetName,
    parse_role,
)
from cosine_node.cli.options import AnnounceMaddrs, AsJson, HostMaddrs, IdentityFile, InitialPeers, Network, Relays
from cosine_node.doctor.finding import CheckStatus, Finding
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

if TYPE_CHECKING:
    from cosine_node.doctor.checks import DoctorOptions

FAILURE_EXIT: Final = 1
MARKS: Final = {
    CheckStatus.OK: ("ok      ", "green"),
    CheckStatus.WARNING: ("warning ", "yellow"),
    CheckStatus.FAILURE: ("failure ", "bold red"),
    CheckStatus.SKIPPED: ("skipped ", "dim"),
}

RoleName = Annotated[
    str | None, typer.Option(envvar="COSINE_ROLE", help="What the machine is to be: drafter or verifier.")
]


def doctor(
    context: typer.Context,
    role: RoleName = None,
    model: Models = None,
    target: TargetName = None,
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
    identity: IdentityFile = None,
    host_maddr: HostMaddrs = None,
    announce_maddr: AnnounceMaddrs = None,
    relay: Relays = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    as_json: AsJson = False,
) -> None:
    """Look for what keeps a node or client from working here; give it the options `join` would get."""
    from cosine_node.doctor.checks import DoctorOptions

    chosen = _role(role, model)
    config, is_config_named, unknown = _configuration(context)
    subject = DoctorOptions(
        initial_peers=several(initial_peers),
        relays=several(relay),
        host_maddrs=hosts(host_maddr),
        announce_maddrs=several(announce_maddr),
        network=network,
        target=target or _target(chosen, several(model)),
        role=chosen,
        models=several(model) or _default_model(chosen),
        identity=identity,
        device=device,
        dtype=dtype,
        quantize=quantize,
        config=config,
        is_config_named=is_config_named,
        unknown=unknown,
    )
    findings = asyncio.run(_examine(subject, _silence if as_json else _printer()))
    _sum_up(findings, as_json=as_json)


def _role(text: str | None, models: list[str] | None) -> Role | None:
    if text is None:
        return Role.DRAFTER if models else None
    return parse_role(text)


def _target(role: Role | None, models: tuple[str, ...]) -> str:
    """As `join` has it: a verifier's model is its target."""
    return models[0] if role is Role.VERIFIER and models else DEFAULT_TARGET


def _default_model(role: Role | None) -> tuple[str, ...]:
    if role is None:
        return ()
    return (DEFAULT_TARGET if role is Role.VERIFIER else DEFAULT_DRAFTER,)


def _configuration(context: typer.Context) -> tuple[Path, bool, tuple[str, ...]]:
    """The configuration file, whether the user named it, and the names in it that no command has."""
    from cosine_node.cli.app import default_config_file, read_config

    root = context.find_root()
    named: Path | None = root.params.get("config")
    commands: dict[str, Any] = getattr(root.command, "commands", {})
    try:
        unknown = unknown_names(read_config(named), commands)
    except UsageError:
        unknown = []
    return named or default_config_file(), named is not None, tuple(unknown)


async def _examine(subject: "DoctorOptions", tell: Callable[[Finding], None]) -> list[Finding]:
    from cosine_node.doctor.checks import Facts, checks_of
    from cosine_node.doctor.examination import examine

    facts = Facts(subject)
    try:
        return await examine(checks_of(subject, facts), tell)
    finally:
        await facts.close()


def _silence(finding: Finding) -> None:
    """With --json all is told at the end."""


def _printer() -> Callable[[Finding], None]:
    console = Console(highlight=False, soft_wrap=True)

    def tell(finding: Finding) -> None:
        mark, style = MARKS[finding.status]
        console.print(Text.assemble((mark, style), (f"{finding.what}: ", "bold"), _printable(finding.found)))
        if finding.fix:
            console.print(Text.assemble(" " * len(mark), (f"-> {_printable(finding.fix)}", style)))

    return tell


def _printable(text: str) -> str:
    """Without what would steer a terminal: peers and broken files have their say in it."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _sum_up(findings: Sequence[Finding], *, as_json: bool) -> None:
    counts = Counter(finding.status for finding in findings)
    failures = counts[CheckStatus.FAILURE]
    if as_json:
        checks = [{"what": f.what, "result": f.status, "found": f.found, "fix": f.fix} for f in findings]
        sys.stdout.write(json.dumps({"checks": checks, "failures": failures}) + "\n")
    else:
        counted = ", ".join(f"{counts[status]} {status}" for status in CheckStatus if counts[status])
        sys.stdout.write(f"{len(findings)} checks: {counted}.\n")
    if failures:
        raise typer.Exit(FAILURE_EXIT)
