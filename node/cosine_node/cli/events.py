"""Events of a running node for people or machines, and the signals that stop it."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any

from rich.console import Console

from cosine_node.cli.json_log import logging_as_json
from cosine_node.cli.progress import STAGES, StartProgress
from cosine_p2p.transport.config import DEFAULT_HOST_MADDRS
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)
Emit = Callable[[str, dict[str, object]], None]
_TextOf = Callable[[str, dict[str, object]], str]

_SENTENCES = {
    "loading": "Loading {model} ...",
    "measuring": "Measuring {model} on this machine ...",
    "ready": "Ready as {role} {peer_id}, reachable at:",
    "stopped": "Stopped after {passes} passes.",
}
_NO_BARS = "HF_HUB_DISABLE_PROGRESS_BARS"


@contextmanager
def telling(log_format: str, *, as_json: bool, sentences: Mapping[str, str] = _SENTENCES) -> Iterator[Emit]:
    """`emitter`, and where that is for people and stderr is a terminal, the stages of a start shown there."""
    emit = emitter(log_format, as_json=as_json, sentences=sentences)
    if as_json or log_format == "json":
        # A bar would come between the lines.
        os.environ.setdefault(_NO_BARS, "1")
        with logging_as_json() if log_format == "json" else nullcontext():
            yield emit
    elif sys.stderr.isatty():
        progress = StartProgress(Console(stderr=True))
        try:
            yield partial(_emit_with_progress, progress=progress, emit=emit)
        finally:
            progress.close()
    else:
        yield emit


def emitter(log_format: str, *, as_json: bool, sentences: Mapping[str, str] = _SENTENCES) -> Emit:
    """How events are told: `ready` and `stopped` on stdout, all else on stderr. Raises `UsageError`.

    `sentences` are what people read of each event; of one without a sentence they read nothing. With `as_json`
    nothing but the ready line is on stdout.
    """
    if log_format not in ("pretty", "json"):
        raise UsageError(f"--log-format must be pretty or json, not {log_format!r}.")
    if as_json:
        return partial(_emit, text_of=_json_line, on_stdout=("ready",))
    text_of = _json_line if log_format == "json" else partial(_sentence, sentences=sentences)
    return partial(_emit, text_of=text_of, on_stdout=("ready", "stopped"))


def _emit(event: str, fields: dict[str, object], *, text_of: _TextOf, on_stdout: tuple[str, ...]) -> None:
    # A machine reads the ready line first, so what comes before it goes to stderr.
    if text := text_of(event, fields):
        out = sys.stdout if event in on_stdout else sys.stderr
        out.write(text + "\n")
        out.flush()


def _json_line(event: str, fields: dict[str, object]) -> str:
    return json.dumps({"event": event, **fields})


def _sentence(event: str, fields: dict[str, object], *, sentences: Mapping[str, str]) -> str:
    if event not in sentences:
        return ""
    problem = f": {fields['error']}" if "error" in fields else ""
    addresses = fields.get("maddrs")
    listed = addresses if isinstance(addresses, list) else ()
    return "\n".join([sentences[event].format(**fields) + problem, *(f"  {maddr}" for maddr in listed)])


def _emit_with_progress(event: str, fields: dict[str, object], *, progress: StartProgress, emit: Emit) -> None:
    progress.follow(event, fields)
    if event not in STAGES:
        emit(event, fields)


def run_until_stopped(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run a node; the first SIGTERM or SIGINT sets the event it drains on."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(note_loose_error)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        running = asyncio.ensure_future(work(stop))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await running

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


def note_loose_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task waits for; a peer that hangs up before its stream has begun is none.

    The network library reads who it is in a callback of its own: every such peer would be a traceback.
    """
    has_hung_up = isinstance(context.get("exception"), asyncio.IncompleteReadError)
    if has_hung_up and str(context.get("message", "")).endswith("client_connected_cb"):
        LOG.debug("a peer hung up before its stream had begun")
    else:
        loop.default_exception_handler(context)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed, else asyncio's own."""
    if find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


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
    """Dataclasses, tuples and bytes as what JSON has; bytes in hex."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: json_safe(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value
