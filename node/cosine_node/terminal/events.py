"""Events of a running node: a JSON line each for machines; sentences and the stages of its start for people."""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from cosine_node.terminal.printing import show
from cosine_protocol.errors import UsageError

Emit = Callable[[str, dict[str, object]], None]
"""Tells an event of a node or gateway: its name and its fields."""

SENTENCES: Final[Mapping[str, str]] = {
    "generation_config": "{said}",
    "importing": "Importing the libraries ...",
    "gathering": "Fetching {model} from the swarm ...",
    "loading": "Reading the weights of {model} ...",
    "testing": "Trying whether {model} runs exactly ...",
    "computes": "{model} runs with {said}.",
    "loaded": "The KV cache of {model} holds {kv_tokens} tokens, and one request up to {context_tokens} of them.",
    "measuring": "Measuring {model} on this machine ...",
    "took": "{said} took {seconds:.1f} s.",
    "waiting": "Waiting for stages. {said}",
    "waiting_for_weights": "Waiting for weights. {said}",
    "gathered": "{said}",
    "ready": "Ready as {role} {peer_id}. {said} Give others this address:",
    "drafts_dear": "{said}",
    "alone": ("It is alone in its network {network!r}, since --initial-peers named nobody to join."),
    "page": "Its page is at {url}/",
    "reached": "{said}",
    "worked": "{model} {said}.",
    "learned": "{model} {said}.",
    "switched": "{model} serves from now on: it is what was learned.",
    "rolled_back": "{model} serves again: {said}.",
    "stopped": "Stopped after {passes} passes. {model} {said}.",
}
"""What people read of a node's events; of all others they read nothing."""


def emitter(log_format: str, *, as_json: bool, sentences: Mapping[str, str] = SENTENCES) -> Emit:
    """A function that writes events: `ready` and `stopped` on stdout, all else on stderr. Raises `UsageError`.

    `sentences` are what people read of each event; of one without a sentence they read nothing. With `as_json`
    nothing but the ready line is on stdout.
    """
    if log_format not in ("pretty", "json"):
        raise UsageError(f"--log-format must be pretty or json, not {log_format!r}.")
    is_for_machines = as_json or log_format == "json"
    # A machine reads the ready line first, so what comes before it goes to stderr.
    on_stdout = ("ready",) if as_json else ("ready", "stopped")

    def emit(event: str, fields: dict[str, object]) -> None:
        if is_for_machines:
            text = json.dumps({"event": event, **fields})
        elif event in sentences:
            problem = f": {fields['error']}" if "error" in fields else ""
            maddrs = fields.get("maddrs")
            addresses = [f"  {maddr}" for maddr in maddrs] if isinstance(maddrs, list) else []
            if addresses[1:]:
                addresses.insert(1, "It also listens at:")
            text = "\n".join([sentences[event].format(**fields) + problem, *addresses])
        else:
            return
        # A full disk below the file that they go to ends no node.
        with suppress(OSError):
            show(sys.stdout if event in on_stdout else sys.stderr, text + "\n")

    return emit


STAGES: Final[Mapping[str, str]] = {
    "importing": "Importing the libraries",
    "fetching": "Fetching {model} from the Hugging Face hub",
    "gathering": "Fetching {model} from the swarm",
    "loading": "Reading the weights of {model}",
    "testing": "Trying whether {model} runs exactly",
    "measuring": "Measuring {model} on this machine",
    "joining": "Joining the network {network}",
    "announcing": "Announcing for {target}",
}
"""The stage that each event of a start begins."""
WITHIN: Final = "gathered"
"""The event that tells how far a stage is, and does not end it."""


TOLD_FROM_S: Final = 1.0
"""How long a shorter stage took is told to machines alone."""


def timed(emit: Emit, *, least_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> Emit:
    """The same, which also emits `took` after each stage of so many seconds or more, before what ends it."""
    under_way: tuple[str, str, float] | None = None

    def emit_timed(event: str, fields: dict[str, object]) -> None:
        nonlocal under_way
        if under_way is not None and event != WITHIN:
            stage, said, began_s = under_way
            under_way, seconds = None, clock() - began_s
            if seconds >= least_s:
                emit("took", {"stage": stage, "said": said, "seconds": round(seconds, 2)})
        emit(event, fields)
        if event in STAGES:
            under_way = event, STAGES[event].format(**fields), clock()

    return emit_timed


class StartProgress:
    """Follows the events of a node through the stages of its start, which any other event ends; `close` ends it."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._sentence = ""
        self._began_s = 0.0
        self._status: Status | None = None

    def follow(self, event: str, fields: Mapping[str, object]) -> None:
        """The stage before this event is over; the event may begin another, or tell how far the one is."""
        if event == WITHIN and self._status is not None:
            self._status.update(Text(f"{self._sentence}: {fields['said']}"))
            return
        self._end(is_done=True)
        if event not in STAGES:
            return
        self._sentence, self._began_s = STAGES[event].format(**fields), self._clock()
        if event in ("fetching", "loading"):
            # Bars of its own are drawn, beside which there is no spinner.
            self._console.print(Text(f"{self._sentence} ..."))
        else:
            self._status = self._console.status(Text(self._sentence))
            self._status.start()

    def close(self) -> None:
        """Leave the terminal as it was, though the stage may not have ended well."""
        self._end(is_done=False)

    def _end(self, *, is_done: bool) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if is_done and self._sentence:
            took = f"{self._clock() - self._began_s:.1f} s"
            self._console.print(Text.assemble(("✓ ", "green"), self._sentence, (f"  {took}", "dim")))
        self._sentence = ""


class JsonLines(logging.Formatter):
    """`{"event": "log", "time", "level", "logger", "message"}`, and what `session.request_log` says besides."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "event": "log",
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in ("request", "client") if hasattr(record, name)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


@contextmanager
def logging_as_json() -> Iterator[None]:
    """Write the log as `JsonLines` in this block, the beginning and end of every request included."""
    handlers = [(handler, handler.formatter) for handler in logging.getLogger().handlers]
    # Only ours tell of requests; those of libraries stay at the level they have.
    ours = map(logging.getLogger, ("cosine_node", "cosine_p2p"))
    levels = [(logger, logger.level) for logger in ours]
    try:
        for handler, _ in handlers:
            handler.setFormatter(JsonLines())
        for logger, _ in levels:
            logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
        yield
    finally:
        for handler, formatter in handlers:
            handler.setFormatter(formatter)
        for logger, level in levels:
            logger.setLevel(level)


@contextmanager
def telling(log_format: str, *, as_json: bool, sentences: Mapping[str, str] = SENTENCES) -> Iterator[Emit]:
    """`emitter`, with the log in the same format; people at a terminal see the stages of the start on stderr."""
    emit = emitter(log_format, as_json=as_json, sentences=sentences)
    if as_json or log_format == "json":
        # A progress bar would come between the lines.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        with logging_as_json() if log_format == "json" else nullcontext():
            yield timed(emit)
    elif sys.stderr.isatty():
        progress = StartProgress(Console(stderr=True))

        def emit_after_stages(event: str, fields: dict[str, object]) -> None:
            progress.follow(event, fields)
            if event not in STAGES and event != WITHIN:
                emit(event, fields)

        try:
            yield emit_after_stages
        finally:
            progress.close()
    else:
        yield timed(emit, least_s=TOLD_FROM_S)
