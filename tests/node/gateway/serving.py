"""The gateway on a real socket of its own thread, for clients that block and clients that do not."""

import asyncio
import queue
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.engine.curve import CostCurve
from cosine_node.gateway.app import GatewayOptions, make_app
from cosine_node.gateway.server import listening, serve_app, url_of
from cosine_p2p.strategy.registry import STRATEGIES
from tests.node.gateway.letters import MODEL, QUICK, letter_client, letter_swarm

HOST: Final = "127.0.0.1"
TIMEOUT_S: Final = 30.0
# The clock is real here, and by it drafters of scripted models do not pay.
ALWAYS_DRAFTED: Final = {**STRATEGIES, "cosine": replace(STRATEGIES["cosine"], drafter_counts=())}


@dataclass(slots=True)
class ServedGateway:
    """A running gateway: where it is, what it has told, and its loop to look into it."""

    url: str
    loop: asyncio.AbstractEventLoop
    swarm: SimulatedSwarm
    stop: asyncio.Event
    events: "queue.SimpleQueue[tuple[str, dict[str, object]]]" = field(default_factory=queue.SimpleQueue)

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(TIMEOUT_S)

    def ask_to_stop(self) -> None:
        """As SIGTERM does."""
        self.loop.call_soon_threadsafe(self.stop.set)


@contextmanager
def served(*, curve: CostCurve = QUICK, drain_s: float = 5.0, **options: Any) -> Iterator[ServedGateway]:
    """A gateway over a swarm of letters; `options` are fields of `GatewayOptions`. It is gone afterwards."""
    ready = threading.Event()
    started: list[ServedGateway] = []
    failures: list[BaseException] = []
    settings = GatewayOptions(model_name=MODEL, **options)
    thread = threading.Thread(
        target=_run, args=(settings, curve, drain_s, started, ready, failures), name="gateway", daemon=True
    )
    thread.start()
    try:
        assert ready.wait(TIMEOUT_S) and not failures, failures
        yield started[0]
    finally:
        for gateway in started:
            if thread.is_alive():
                gateway.ask_to_stop()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert not failures, failures


def _run(
    settings: GatewayOptions,
    curve: CostCurve,
    drain_s: float,
    started: list[ServedGateway],
    ready: threading.Event,
    failures: list[BaseException],
) -> None:
    try:
        asyncio.run(_serve(settings, curve, drain_s, started, ready))
    except BaseException as error:
        failures.append(error)
    finally:
        ready.set()


async def _serve(
    settings: GatewayOptions,
    curve: CostCurve,
    drain_s: float,
    started: list[ServedGateway],
    ready: threading.Event,
) -> None:
    place = listening(HOST, 0)
    closing = asyncio.Event()
    async with letter_swarm(curve=curve) as swarm:
        url, loop = url_of(place, HOST), asyncio.get_running_loop()
        gateway = ServedGateway(url, loop, swarm, asyncio.Event())
        started.append(gateway)

        def emit(event: str, fields: dict[str, object]) -> None:
            gateway.events.put((event, fields))

        app = make_app(await letter_client(swarm, strategies=ALWAYS_DRAFTED), settings, emit=emit, closing=closing)
        await serve_app(app, place, stop=gateway.stop, closing=closing, on_ready=ready.set, drain_s=drain_s)
