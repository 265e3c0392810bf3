"""`cosine-node demo`: a race of three ways to generate, in a swarm on this machine."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from cosine_engine import zoo
from cosine_node.demo.race import Race, RacedPrompt, RacedWay
from cosine_node.demo.report import RaceReport, print_report, race_view, result_line
from cosine_node.passes.emulation import DEFAULT_PROFILE, Emulation
from cosine_protocol.errors import UsageError
from cosine_protocol.request import MAX_TEMPERATURE
from cosine_terminal.help_screen import everyday
from cosine_terminal.options import AsJson
from cosine_terminal.printing import FAILURE_EXIT, printable, say

if TYPE_CHECKING:
    from cosine_node.demo.swarm import Cast, Offer, Say, Show

FRAMES_PER_S = 12
"""Smooth, and leaves the processor to the nodes."""
SHOWN_CHARACTERS = 160
"""Two lines of each text in a log."""
LOG_COLUMNS = 110
HOST = "127.0.0.1"
RING_STAGES = 3
RING_LINKS = "@60"
"""Links between any two nodes of the family smol: the round trip between homes of one continent."""


def demo(
    max_new_tokens: Annotated[
        int | None, everyday(help="Number of new tokens of each prompt. Default: 96 (toy) or 40 (smol).")
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="Sampling temperature; may be repeated. Default: 0 and 0.8 (toy) or 0 (smol)."),
    ] = None,
    family: Annotated[
        str | None,
        everyday(
            metavar="NAME",
            help="smol, by the clock, or toy. smol is in three parts 60 ms apart, toy on emulated devices. "
            "Default: smol if it is installed.",
        ),
    ] = None,
    emulate: Annotated[
        str | None,
        typer.Option(
            envvar="COSINE_EMULATE", help="Emulated device and link of toy: VERIFIER_MS/DRAFTER_MS@RTT_MS."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Race plain decoding, copying and cosine on this machine."""
    from cosine_node.cli.demo import offering
    from cosine_node.demo.swarm import run_demo

    if max_new_tokens is not None and max_new_tokens < 2:
        raise UsageError("--max-new-tokens must be 2 or more.")
    cast = choose_cast(family, emulate)
    temperatures = tuple(temperature or cast.temperatures)
    if not all(0.0 <= value <= MAX_TEMPERATURE for value in temperatures):
        raise UsageError(f"--temperature must lie between 0 and {MAX_TEMPERATURE:g}.")
    tokens = max_new_tokens or cast.new_tokens
    is_seen = sys.stdin.isatty() and sys.stdout.isatty() and not as_json

    def run(show: "Show") -> RaceReport:
        # A user at a terminal can end the page.
        offer = offering(say, model_name=cast.target) if is_seen else None
        return asyncio.run(
            run_demo(cast, max_new_tokens=tokens, temperatures=temperatures, say=say, show=show, offer=offer)
        )

    if as_json:
        report = run(_log_result)
        sys.stdout.write(json.dumps(report.as_json()) + "\n")
    else:
        is_terminal = sys.stdout.isatty()
        report = _run_on_screen(run) if is_terminal else run(_log_result)
        print_report(report, Console(width=None if is_terminal else LOG_COLUMNS))
    if not all(row.identical for row in report.rows):
        raise typer.Exit(FAILURE_EXIT)


def choose_cast(family: str | None, emulate: str | None) -> "Cast":
    """The models of a demo, and whether they run on emulated devices. Raises `UsageError`."""
    from cosine_node.demo.swarm import Cast

    if family is not None and family not in set(zoo.Family):
        raise UsageError(f"--family must be {' or '.join(zoo.Family)}, not {family!r}.")
    here = zoo.names(zoo.Family.SMOL)
    is_real_here = zoo.target_of(zoo.Family.SMOL) in here and len(here) > 1
    if family == zoo.Family.TOY or (family is None and (emulate is not None or not is_real_here)):
        emulation = Emulation.parse(emulate or DEFAULT_PROFILE)
        if not emulation.has_device:
            raise UsageError(f"A demo needs an emulated device, such as {DEFAULT_PROFILE}.")
        return Cast(zoo.Family.TOY, emulation)
    if emulate is not None:
        raise UsageError("--emulate is for --family toy: the family smol runs by the clock.")
    zoo.require(zoo.Family.SMOL)
    return Cast(zoo.Family.SMOL, Emulation.parse(RING_LINKS), stages=RING_STAGES)


def _log_result(shown: "Race | RacedPrompt") -> None:
    if isinstance(shown, RacedPrompt):
        say(result_line(shown))
        text = " ".join(shown.done[RacedWay.COSINE].text.split())
        say(f"    {printable(text[:SHOWN_CHARACTERS])}{'...' if len(text) > SHOWN_CHARACTERS else ''}")


def _run_on_screen(run: Callable[["Show"], RaceReport]) -> RaceReport:
    console = Console()
    # Started by the first race, because the waiting line is rewritten until then.
    live = Live(console=console, refresh_per_second=FRAMES_PER_S, transient=True)

    def show(shown: "Race | RacedPrompt") -> None:
        live.start()
        if isinstance(shown, RacedPrompt):
            console.print(result_line(shown), highlight=False)
        else:
            live.update(race_view(shown, columns=console.width))

    try:
        return run(show)
    finally:
        live.stop()


def offering(say: "Say", *, model_name: str) -> "Offer":
    """Return a function that serves the page until Enter or Ctrl-C."""

    async def offer(peer: str, target: str) -> None:
        from cosine_gateway.http.app import GatewayOptions
        from cosine_gateway.http.server import listening, serve_gateway
        from cosine_node.advice.own_machine import OwnMachine

        def note(event: str, fields: dict[str, object]) -> None:
            if event == "ready":
                say(f"The swarm is still running, with a page at {fields['url']}/ ; press Enter to end it.")

        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(sys.stdin, stop.set)
        loop.add_signal_handler(signal.SIGINT, stop.set)
        try:
            options = GatewayOptions(
                model_name=model_name, host_names=(socket.gethostname(),), machine=OwnMachine()
            )
            client = {"initial_peers": (peer,), "target": target}
            await serve_gateway(listening(HOST, 0), HOST, client, options, note, stop)
        finally:
            loop.remove_reader(sys.stdin)
            loop.remove_signal_handler(signal.SIGINT)

    return offer
