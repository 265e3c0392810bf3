"""The commands that run nodes: a verb for each role, `join` with the options of all, and `doctor`, its check."""

import asyncio
from dataclasses import replace
from typing import Annotated

from cosine_node.cli.node_flags import (
    OF_A_BOOTSTRAP,
    OF_A_DRAFTER,
    OF_A_HEAD,
    OF_A_STAGE,
    OF_A_VERIFIER,
    OF_JOIN,
    NodeFlags,
)
from cosine_node.cli.roles import (
    drafters_of,
    head_of,
    network_of,
    nodes_of,
    refuse_shared_ports,
    stage_of,
    verifier_of,
)
from cosine_node.doctor.telling import tell_findings
from cosine_node.serving.options import (
    DraftOptions,
    HeadOptions,
    JoinPlan,
    NetworkOptions,
    RoleOptions,
    StageOptions,
    VerifyOptions,
)
from cosine_protocol.errors import UsageError
from cosine_protocol.records import ALL_TARGETS, Role
from cosine_terminal.events import Emit, telling
from cosine_terminal.interrupts import run_until_stopped
from cosine_terminal.options import Link, takes_options


@takes_options
def draft(flags: Annotated[NodeFlags, OF_A_DRAFTER], link: Link = None) -> None:
    """Guess the next tokens of a target for its verifiers."""
    _serve(network_of(flags, link), drafters_of(flags), flags)


@takes_options
def verify(flags: Annotated[NodeFlags, OF_A_VERIFIER], link: Link = None) -> None:
    """Hold a target and generate with it for clients."""
    _serve(network_of(flags, link), (verifier_of(flags),), flags)


@takes_options
def stage(flags: Annotated[NodeFlags, OF_A_STAGE], link: Link = None) -> None:
    """Hold some layers of a target too large for one machine."""
    _serve(network_of(flags, link), (stage_of(flags),), flags)


@takes_options
def head(flags: Annotated[NodeFlags, OF_A_HEAD], link: Link = None) -> None:
    """Generate for clients with a target whose layers stages hold."""
    _serve(network_of(flags, link), (head_of(flags),), flags)


@takes_options
def bootstrap(flags: Annotated[NodeFlags, OF_A_BOOTSTRAP]) -> None:
    """Keep the DHT and relay for others until interrupted."""
    from cosine_node.serving.node import run_bootstrap

    network = network_of(flags)
    with telling(flags.log_format, as_json=flags.as_json) as emit:
        run_until_stopped(lambda stop: run_bootstrap(network, emit, stop))


@takes_options
def join(flags: Annotated[NodeFlags, OF_JOIN]) -> None:
    """Serve as a drafter, verifier or stage until interrupted.

    SIGTERM drains and exits 0.
    """
    network = network_of(flags)
    if flags.role is None and not (flags.check or flags.report):
        raise UsageError(f"Say what to serve as: --role {', '.join(Role)}.")
    _serve(network, nodes_of(flags), flags)


@takes_options
def doctor(flags: Annotated[NodeFlags, tuple(name for name in OF_JOIN if name != "check")]) -> None:
    """Look for what keeps a node or client from working here.

    It takes the options of `join`.
    """
    _serve(network_of(flags), nodes_of(flags), replace(flags, check=True))


def _serve(network: NetworkOptions, nodes: tuple[RoleOptions, ...], flags: NodeFlags) -> None:
    """Check whether the nodes could work, or run them until interrupted. Raises `UsageError`."""
    refuse_shared_ports(len(nodes), network)
    target = nodes[0].source.target if nodes else flags.target or ALL_TARGETS
    plan = JoinPlan(network=network, nodes=nodes, target=target)
    if flags.check or flags.report:
        tell_findings(plan, as_json=flags.as_json, as_report=flags.report)
        return
    with telling(flags.log_format, as_json=flags.as_json) as emit:
        if flags.page is None:
            run_until_stopped(lambda stop: _run(plan, emit, stop))
        else:
            _show_page(flags.page, plan, emit)


async def _run(plan: JoinPlan, emit: Emit, stop: asyncio.Event) -> None:
    """Run the nodes of a plan. Libraries are imported here, where an interrupt ends the command."""
    emit("importing", {})
    match plan.nodes:
        case [StageOptions() as stage]:
            from cosine_node.serving.stage_role import run_stage

            await run_stage(plan.network, stage, emit, stop)
        case [HeadOptions() as head]:
            from cosine_node.serving.head_role import run_head

            await run_head(plan.network, head, emit, stop)
        case [VerifyOptions() as verifier]:
            from cosine_node.serving.verify_role import run_verifier

            await run_verifier(plan.network, verifier, emit, stop)
        case nodes:
            from cosine_node.serving.draft_role import run_drafters

            drafters = [each for each in nodes if isinstance(each, DraftOptions)]
            await run_drafters(plan.network, drafters, emit, stop)


def _show_page(port: int, plan: JoinPlan, emit: Emit) -> None:
    """Run the nodes with a page. Raises `UsageError` if it cannot be shown."""
    from cosine_gateway.http.server import listening
    from cosine_node.cli.node_page import PAGE_HOST, page_access, run_with_page

    if not 0 <= port <= 65_535:
        raise UsageError("--page must lie between 0 and 65535.")
    access = page_access(plan.network.access)
    listener = listening(PAGE_HOST, port)
    run_until_stopped(
        lambda stop: run_with_page(
            lambda emit: _run(plan, emit, stop), listener, access=access, target=plan.target, emit=emit, stop=stop
        )
    )
