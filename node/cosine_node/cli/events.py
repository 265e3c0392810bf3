"""Events of a running node for people or machines, and the signals that stop it."""

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from cosine_p2p.transport.config import DEFAULT_HOST_MADDRS
from cosine_protocol.errors import UsageError

Emit = Callable[[str, dict[str, object]], None]

_SENTENCES = {
    "loading": "Loading {model} ...",
    "measuring": "Measuring {model} on this machine ...",
    "ready": "Ready as {role} {peer_id}, reachable at:",
    "stopped": "Stopped after {passes} passes.",
}


def emitter(log_format: str, *, as_json: bool) -> Emit:
    """How events are told; with `as_json` only the ready line goes to stdout. Raises `UsageError`."""
    if as_json:
        return partial(_emit_json, stdout_events=frozenset({"ready"}))
    if log_format == "json":
        return partial(_emit_json, stdout_events=frozenset({"ready", "stopped"}))
    if log_format == "pretty":
        return _emit_pretty
    raise UsageError(f"--log-format must be pretty or json, not {log_format!r}.")


def _emit_json(event: str, fields: dict[str, object], *, stdout_events: frozenset[str]) -> None:
    # A machine reads the ready line first, so what comes before it goes to stderr.
    out = sys.stdout if event in stdout_events else sys.stderr
    out.write(json.dumps({"event": event, **fields}) + "\n")
    out.flush()


def _emit_pretty(event: str, fields: dict[str, object]) -> None:
    sentence = _SENTENCES.get(event, event).format(**fields)
    addresses = fields.get("maddrs")
    lines = [sentence, *(f"  {maddr}" for maddr in (addresses if isinstance(addresses, list) else ()))]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def run_until_stopped(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run a node; the first SIGTERM or SIGINT sets the event it drains on."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        running = asyncio.ensure_future(work(stop))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await running

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def several(values: list[str] | None) -> tuple[str, ...]:
    """A repeatable option's values."""
    return tuple(values or ())


def hosts(values: list[str] | None) -> tuple[str, ...]:
    """Listening addresses, the default where none is given."""
    return several(values) or DEFAULT_HOST_MADDRS


def split_list(text: str) -> tuple[str, ...]:
    """Parts of a comma-separated option."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def json_safe(value: Any) -> Any:
    """Dataclasses and tuples as what JSON has."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: json_safe(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value
