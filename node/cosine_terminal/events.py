"""Events of a running node: JSON lines for machines; sentences and the stages of its start for people."""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from cosine_protocol.errors import UsageError
from cosine_terminal.printing import show

PACKAGES: Final = ("cosine_engine", "cosine_gateway", "cosine_node", "cosine_p2p", "cosine_terminal")
"""The packages that log, whose names are those of their loggers."""

Emit = Callable[[str, dict[str, object]], None]
"""Emits an event of a node or gateway: its name and fields."""

STAGES: Final[Mapping[str, str]] = {
    "importing": "Importing the libraries",
    "fetching": "Fetching {model} from the Hugging Face hub",
    "gathering": "Fetching {model} from the swarm",
    "loading": "Reading the weights of {model}",
    "testing": "Testing whether {model} runs exactly",
    "measuring": "Measuring {model} on this machine",
    "joining": "Joining the network {network}",
    "announcing": "Announcing for {target}",
}
"""The stages of a start, by the events that begin them."""
WITHIN: Final = "gathered"
"""The event that reports the progress of a stage without ending it."""
TOOK: Final = "took"
"""The event after a stage, with its duration."""

SENTENCES: Final[Mapping[str, str]] = {
    **{event: f"{STAGES[event]} ..." for event in ("importing", "gathering", "loading", "testing", "measuring")},
    "generation_config": "{said}",
    "computes": "{model} runs with {said}.",
    "loaded": "The KV cache of {model} holds {kv_tokens} tokens, and one request up to {context_tokens} of them.",
    TOOK: "{said} took {seconds:.1f} s.",
    "waiting": "Waiting for stages. {said}",
    "waiting_for_weights": "Waiting for weights. {said}",
    "gathered": "{said}",
    "ready": "Ready as {role} {peer_id}. {said} Give others this address:",
    "drafts_dear": "{said}",
    "alone": "It is alone in its network {network!r}: no peer is named, and none found in the local network yet.",
    "neighbour": "Found {peer_id} in the local network.",
    "page": "Its page is at {url}/",
    "reached": "{said}",
    "worked": "{model} {said}.",
    "rested": "{model} {said}.",
    "unloaded": "The memory of {model} is given back; the next request waits {said} for it.",
    "stopped": "Stopped after {passes} passes. {model} {said}.",
}
"""The sentences for a node's events; other events are not shown to people."""


def emitter(log_format: str, *, as_json: bool, sentences: Mapping[str, str] = SENTENCES) -> Emit:
    """Return a function that writes `ready` and `stopped` events to stdout, and others to stderr.

    Events without a sentence are not shown to people. With `as_json`, only `ready` goes to stdout. Raises
    `UsageError`.
    """
    if log_format not in ("pretty", "json"):
        raise UsageError(f"--log-format must be pretty or json, not {log_format!r}.")
    is_for_machines = as_json or log_format == "json"
    # A program reads the ready line first, so earlier events go to stderr.
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
        # A full disk must not end the node.
        with suppress(OSError):
            show(sys.stdout if event in on_stdout else sys.stderr, text + "\n")

    return emit


TOLD_FROM_S: Final = 1.0
"""The durations of shorter stages are not shown to people."""


def timed(emit: Emit, *, least_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> Emit:
    """Wrap `emit` to also emit `TOOK` after each stage of at least `least_s`, before the event that ends it."""
    under_way: tuple[str, str, float] | None = None

    def emit_timed(event: str, fields: dict[str, object]) -> None:
        nonlocal under_way
        if under_way is not None and event != WITHIN:
            stage, said, began_s = under_way
            under_way, seconds = None, clock() - began_s
            if seconds >= least_s:
                emit(TOOK, {"stage": stage, "said": said, "seconds": round(seconds, 2)})
        emit(event, fields)
        if event in STAGES:
            under_way = event, STAGES[event].format(**fields), clock()

    return emit_timed


class StartProgress:
    """Shows the stages of a node's start as it follows `timed` events; any other event ends a stage."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._sentence = ""
        self._status: Status | None = None

    def follow(self, event: str, fields: Mapping[str, Any]) -> None:
        """End the current stage and begin the event's stage, or show the progress of the current one."""
        if event == WITHIN and self._status is not None:
            self._status.update(Text(f"{self._sentence}: {fields['said']}"))
            return
        self.close()
        if event == TOOK:
            took = f"  {fields['seconds']:.1f} s"
            self._console.print(Text.assemble(("✓ ", "green"), fields["said"], (took, "dim")))
        if event not in STAGES:
            return
        self._sentence = STAGES[event].format(**fields)
        if event in ("fetching", "loading"):
            # These stages draw their own progress bars, so there is no spinner.
            self._console.print(Text(f"{self._sentence} ..."))
        else:
            self._status = self._console.status(Text(self._sentence))
            self._status.start()

    def close(self) -> None:
        """Restore the terminal; the current stage may not have succeeded."""
        if self._status is not None:
            self._status.stop()
            self._status = None


class JsonLines(logging.Formatter):
    """Formats `{"event": "log", "time", "level", "logger", "message"}` with the fields of `RequestLogger`."""

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
    """Write the log as `JsonLines` in this block, including the beginning and end of requests."""
    handlers = [(handler, handler.formatter) for handler in logging.getLogger().handlers]
    # Those of libraries keep their level.
    levels = [(logger, logger.level) for logger in map(logging.getLogger, PACKAGES)]
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
    """Yield an `emitter`, with the log in the same format; a terminal shows the stages of the start on stderr."""
    emit = emitter(log_format, as_json=as_json, sentences=sentences)
    if as_json or log_format == "json":
        # A progress bar would be mixed with the lines.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        with logging_as_json() if log_format == "json" else nullcontext():
            yield timed(emit)
    elif sys.stderr.isatty():
        progress = StartProgress(Console(stderr=True))

        def emit_after_stages(event: str, fields: dict[str, object]) -> None:
            progress.follow(event, fields)
            if event not in STAGES and event not in (WITHIN, TOOK):
                emit(event, fields)

        try:
            yield timed(emit_after_stages)
        finally:
            progress.close()
    else:
        yield timed(emit, least_s=TOLD_FROM_S)
