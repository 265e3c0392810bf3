"""Processes that render chat templates, which may loop forever or exhaust memory."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Semaphore, Timer
from typing import Any, Final
from weakref import finalize

from cosine_p2p.text import template_worker
from cosine_protocol.errors import PromptRefused

RENDER_TIMEOUT_S: Final = 2.0  # Templates take milliseconds.
START_TIMEOUT_S: Final = 10.0  # A process takes tenths of a second to start.
PLACES: Final = 6  # Number of concurrent renderings.
KEPT_PROCESSES: Final = 2  # Idle processes, of about ten MiB each.
MAX_TEXT_CHARACTERS: Final = 8 << 20  # More than the prompts of the longest contexts.
MAX_ANSWER_BYTES: Final = 6 * MAX_TEXT_CHARACTERS + 1024  # JSON writes a UTF-16 unit in at most 6 bytes.


class TemplateStopped(PromptRefused):
    """A template was stopped; another try would take as long."""


class TemplateProcesses:
    """Renders templates of jinja2 concurrently. Processes start when needed and end with the object."""

    def __init__(self) -> None:
        self._idle: list[_Process] = []
        self._places = Semaphore(PLACES)

    def render(self, template: str, values: dict[str, Any], *, now: str) -> str:
        """Render a template for the time `now` (ISO 8601). Raises `PromptRefused`, `TemplateStopped` if slow."""
        asked = {"template": template, "values": values, "now": now, "max_characters": MAX_TEXT_CHARACTERS}
        question = json.dumps(asked).encode() + b"\n"
        with self._places:
            process = self._process()
            line = process.ask(question)
        if not line.endswith(b"\n"):
            raise TemplateStopped("The target's chat template took too long, or too much memory.")
        if len(self._idle) < KEPT_PROCESSES:
            self._idle.append(process)
        answer = json.loads(line)
        if "error" in answer:
            raise PromptRefused(f"The target's chat template refused the messages: {answer['error'].rstrip('.')}.")
        return str(answer["text"])

    def _process(self) -> "_Process":
        while True:
            try:
                process = self._idle.pop()
            except IndexError:
                return _Process()
            if process.is_ours:
                return process


class _Process:
    """A process of `template_worker`. It ends with this object, or when its stdin is closed."""

    def __init__(self) -> None:
        jinja2 = find_spec("jinja2")
        if jinja2 is None or jinja2.origin is None:
            raise PromptRefused("Chats need jinja2, which is not installed; install it, or send plain text.")
        # Isolated from the user's environment.
        self._process = subprocess.Popen(
            [sys.executable, "-I", template_worker.__file__, str(Path(jinja2.origin).parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C may end one answer of a conversation.
            process_group=0,
        )
        self._pid = os.getpid()
        finalize(self, _end, self._process, self._pid)
        self._line_within(START_TIMEOUT_S)

    @property
    def is_ours(self) -> bool:
        """False in a forked child."""
        return self._pid == os.getpid()

    def ask(self, question: bytes) -> bytes:
        """Return the line of the answer; incomplete if the process failed or took too long."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(question)
            self._process.stdin.flush()
        except OSError:
            return b""
        return self._line_within(RENDER_TIMEOUT_S)

    def _line_within(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        ending = Timer(seconds, self._process.kill)
        ending.daemon = True
        ending.start()
        try:
            return self._process.stdout.readline(MAX_ANSWER_BYTES)
        finally:
            ending.cancel()


def _end(process: "subprocess.Popen[bytes]", pid: int) -> None:
    if os.getpid() != pid:
        # In a forked child the process belongs to the parent.
        return
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue
    process.wait()
