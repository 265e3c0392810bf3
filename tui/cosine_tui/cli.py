"""The `cosine-tui` command: its options, and the choice of the source."""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cosine_p2p.access import Access
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.text.target import Target as TargetName
from cosine_protocol.errors import CosineError, UsageError
from cosine_terminal.companions import SIMULATION
from cosine_terminal.help_screen import Command, everyday
from cosine_terminal.options import ENTRANCE, InitialPeers, several, spread_peers, takes_options
from cosine_terminal.packages import missing_text
from cosine_terminal.printing import FAILURE_EXIT, INTERRUPT_EXIT, USAGE_EXIT, printable

if TYPE_CHECKING:
    from cosine_tui.state.feed import Feed

# Bounds of --demo-speed: slower looks like a standstill, faster exceeds the speed of simulation.
MIN_SPEED: Final = 0.05
MAX_SPEED: Final = 20.0

app = typer.Typer(
    name="cosine-tui",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
)


@app.command(cls=Command)
@takes_options
def monitor(
    options: Annotated[ClientOptions, (*ENTRANCE, "target")],
    initial_peers: InitialPeers = None,
    demo: Annotated[bool, everyday("--demo", help="Show a simulated swarm; needs no network.")] = False,
    demo_speed: Annotated[float, typer.Option(help="Simulated seconds per real second.")] = 1.0,
    demo_seed: Annotated[int, typer.Option(help="Seed of the simulated swarm.")] = 1,
    theme: Annotated[str, everyday(envvar="COSINE_THEME", help="dark or light.")] = "dark",
    screenshot: Annotated[Path | None, typer.Option(help="Write the screen to this SVG file and exit.")] = None,
    size: Annotated[str, typer.Option(help="Size of the screenshot, COLUMNSxROWS.")] = "160x48",
    after: Annotated[float, typer.Option(help="Seconds before the screenshot, simulated with --demo.")] = 8.0,
) -> None:
    """Watch a swarm and generate in it.

    It shows the nodes, who drafts for whom, the text as it comes, and what goes wrong.
    """
    if theme not in ("dark", "light"):
        raise UsageError(f"--theme is dark or light, not {theme!r}.")
    if not MIN_SPEED <= demo_speed <= MAX_SPEED:
        raise UsageError(f"--demo-speed lies between {MIN_SPEED:g} and {MAX_SPEED:g}.")
    access = Access.of(options)
    if not (demo or initial_peers or access.uses_lan):
        raise UsageError(
            "No initial peers: give the address of at least one node of the network with --initial-peers, or look "
            "at a simulated swarm with --demo."
        )
    if after <= 0:
        raise UsageError("--after must be above 0 seconds.")
    theme = f"cosine-{theme}"
    if screenshot is not None and demo:
        _write(screenshot, partial(_simulated, demo_seed, after, size, theme))
        return
    feed = (
        _demo().demo_feed(demo_seed, demo_speed)
        if demo
        else _live(several(initial_peers), access, options.get("target"))
    )
    if screenshot is not None:
        _write(screenshot, partial(_live_screen, feed, after, size, theme))
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("cosine-tui needs a terminal; without one, --screenshot FILE.svg draws the screen.")
    raise typer.Exit(asyncio.run(_show(feed, theme)))


def _demo() -> Any:
    """Return the module of simulated swarms."""
    return SIMULATION.part("cosine_tui.sources", "demo")


def _live(initial_peers: tuple[str, ...], access: Access, target: str | None) -> "Feed":
    from cosine_p2p.client_memory import ClientMemory
    from cosine_p2p.network import joining
    from cosine_p2p.trust.denied_peers import BanFile
    from cosine_tui.sources.live import LiveSource
    from cosine_tui.state.feed import ThreadFeed

    folder = None if target is None else TargetName.parse(target).folder
    # The monitor shows missing answers, and retries.
    join = joining(initial_peers, access=access, tokenizer_folder=folder, listens=True, patience_s=0.0)
    began, memory = time.time(), ClientMemory.of(True)
    source = LiveSource(
        join, network=access.network, target=target, began_unix_s=began, bans=BanFile(), memory=memory
    )
    return ThreadFeed(source)


async def _show(feed: "Feed", theme: str) -> int:
    """Run the screen until the user, a signal or the feed ends it, and return the exit code."""
    from cosine_tui.app import MonitorApp

    screen = MonitorApp(feed, theme=theme)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        loop.add_signal_handler(number, screen.exit)
    await screen.run_async()
    if isinstance(screen.failure, CosineError):
        raise screen.failure
    if screen.failure is not None:
        raise RuntimeError("the source of the monitor failed") from screen.failure
    return screen.return_code or 0


def _simulated(seed: int, after_s: float, size: str, theme: str) -> str:
    from cosine_tui.svg_export import read_size, snapshot_svg

    columns_rows = read_size(size)
    return snapshot_svg(_demo().demo_snapshot(seed, after_s), size=columns_rows, theme=theme)


def _live_screen(feed: "Feed", after_s: float, size: str, theme: str) -> str:
    from cosine_tui.svg_export import draw_svg, read_size

    return asyncio.run(draw_svg(feed, size=read_size(size), theme=theme, wait_s=after_s))


def _write(file: Path, draw: "partial[str]") -> None:
    if not file.parent.is_dir():
        raise UsageError(f"{file.parent} is no folder; make it first.")
    svg = draw()
    try:
        file.write_text(svg, "utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written ({error.strerror}).") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the monitor and exit: 0 after quitting, 2 on bad usage, 1 on failure, with one sentence on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=spread_peers(given), prog_name="cosine-tui")
    except KeyboardInterrupt:
        sys.exit(INTERRUPT_EXIT)
    except (ModuleNotFoundError, RuntimeError) as missing:
        if not (sentence := missing_text(missing, extra="tui")):
            raise
        sys.stderr.write(f"Error: {sentence}\n")
        sys.exit(USAGE_EXIT)
    except CosineError as error:
        # It may quote a peer.
        sys.stderr.write(f"Error: {printable(str(error))}\n")
        sys.exit(USAGE_EXIT if isinstance(error, UsageError) else FAILURE_EXIT)
