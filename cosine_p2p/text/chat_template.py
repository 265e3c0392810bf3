"""Chat templates, rendered in a process of their own that can be ended: one may loop for ever or fill memory."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Timer
from typing import Any, Final
from weakref import finalize

from cosine_p2p.text import template_worker
from cosine_protocol.errors import PromptRefused

RENDER_TIMEOUT_S: Final = 10.0
"""A template takes milliseconds, and the process that renders it tenths of a second to start."""
MAX_TEXT_CHARACTERS: Final = 8 << 20
"""More than the prompts of the longest contexts have."""
MAX_ANSWER_BYTES: Final = 6 * MAX_TEXT_CHARACTERS + 1024
"""Bound: JSON writes a character in at most 6 bytes, or 12 for one that counts as two here."""


class ChatTemplate:
    """A template of jinja2. Its process starts when it is first needed and ends with the object."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._turn = Lock()
        self._worker: _Worker | None = None

    def render(self, values: dict[str, Any]) -> str:
        """The text for some values; waits for its turn. Raises `PromptRefused` if there is none in time."""
        asked = {"template": self._text, "values": values, "max_characters": MAX_TEXT_CHARACTERS}
        with self._turn:
            if self._worker is None or not self._worker.is_ours:
                self._worker = _Worker()
            line = self._worker.ask(json.dumps(asked).encode() + b"\n")
            if not line.endswith(b"\n"):
                self._worker = None
                raise PromptRefused("The target's chat template took too long, or too much memory.")
        answer = json.loads(line)
        if "error" in answer:
            raise PromptRefused(f"The target's chat template refused the messages: {answer['error']}.")
        return str(answer["text"])


class _Worker:
    """The process of `template_worker`. It ends with this object, or once nobody holds its stdin."""

    def __init__(self) -> None:
        jinja2 = find_spec("jinja2")
        if jinja2 is None or jinja2.origin is None:
            raise PromptRefused("Chats need jinja2, which is not installed; install it, or send plain text.")
        # Isolated from the user's environment: nothing of it concerns a template.
        self._process = subprocess.Popen(
            [sys.executable, "-I", template_worker.__file__, str(Path(jinja2.origin).parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._pid = os.getpid()
        finalize(self, _end, self._process, self._pid)

    @property
    def is_ours(self) -> bool:
        """False in a child that was forked, whose parent talks to the process."""
        return self._pid == os.getpid()

    def ask(self, question: bytes) -> bytes:
        """The line that answers; part of it, or nothing, if the process failed or was ended for taking too long."""
        assert self._process.stdin is not None and self._process.stdout is not None
        ending = Timer(RENDER_TIMEOUT_S, self._process.kill)
        ending.daemon = True
        ending.start()
        try:
            self._process.stdin.write(question)
            self._process.stdin.flush()
            return self._process.stdout.readline(MAX_ANSWER_BYTES)
        except OSError:
            return b""
        finally:
            ending.cancel()


def _end(process: "subprocess.Popen[bytes]", pid: int) -> None:
    if os.getpid() != pid:
        # In a child that was forked: the process is its parent's.
        return
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue
    process.wait()
