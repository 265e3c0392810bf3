"""Events of a running node: a JSON line each for machines; sentences and the stages of its start for people."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Final

from rich.console import Console

from cosine_node.cli.json_log import logging_as_json
from cosine_node.cli.printing import show
from cosine_node.cli.progress import STAGES, StartProgress
from cosine_protocol.errors import UsageError

Emit = Callable[[str, dict[str, object]], None]

SENTENCES: Final[Mapping[str, str]] = {
    "generation_config": "{said}",
    "loading": "Loading {model} ...",
    "loaded": "The KV cache of {model} holds {kv_tokens} tokens, and one request up to {context_tokens} of them.",
    "measuring": "Measuring {model} on this machine ...",
    "waiting": "Waiting for stages. {said}",
    "ready": "Ready as {role} {peer_id}, reachable at:",
    "alone": (
        "It is alone in its network {network!r}, since --initial-peers named nobody to join. Others join it with "
        "--initial-peers and an address from above."
    ),
    "worked": "{model} {said}.",
    "learned": "{model} {said}.",
    "switched": "{model} serves from now on: it is what was learned.",
    "rolled_back": "{model} serves again: {said}.",
    "stopped": "Stopped after {passes} passes. {model} {said}.",
}
"""What people read of a node's events; of all others they read nothing."""


@contextmanager
def telling(log_format: str, *, as_json: bool, sentences: Mapping[str, str] = SENTENCES) -> Iterator[Emit]:
    """`emitter`, with the log in the same format; people at a terminal see the stages of the start on stderr."""
    emit = emitter(log_format, as_json=as_json, sentences=sentences)
    if as_json or log_format == "json":
        # A progress bar would come between the lines.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        with logging_as_json() if log_format == "json" else nullcontext():
            yield emit
    elif sys.stderr.isatty():
        progress = StartProgress(Console(stderr=True))

        def emit_after_stages(event: str, fields: dict[str, object]) -> None:
            progress.follow(event, fields)
            if event not in STAGES:
                emit(event, fields)

        try:
            yield emit_after_stages
        finally:
            progress.close()
    else:
        yield emit


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
            addresses = maddrs if isinstance(maddrs, list) else []
            text = "\n".join([sentences[event].format(**fields) + problem, *(f"  {maddr}" for maddr in addresses)])
        else:
            return
        # A full disk below the file that they go to ends no node.
        with suppress(OSError):
            show(sys.stdout if event in on_stdout else sys.stderr, text + "\n")

    return emit
