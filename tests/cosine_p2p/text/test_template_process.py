"""Tests of the limits of chat templates."""

import asyncio
import os

import pytest

from cosine_p2p.text import template_process
from cosine_p2p.text.template_process import TemplateProcesses
from cosine_protocol.errors import PromptRefused
from tests.thoroughness import THOROUGH

CHAT = {"messages": [{"role": "user", "content": "hé 🙂"}]}
OTHER = {"messages": [{"role": "other"}]}
NOW = "2026-11-26T12:00:00"
ENDLESS = "{% for a in range(99999) %}" * 4 + "{% endfor %}" * 4
REFUSED = "The target's chat template refused the messages"
GROWING = "{% set n = namespace(t='x') %}{% for a in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}"
ENDLESS_FOR_USERS = "{% if messages[0].role == 'user' %}" + ENDLESS + "{% endif %}done"


def test_one_without_an_end_is_ended_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = TemplateProcesses()
    assert processes.render(ENDLESS_FOR_USERS, OTHER, now=NOW) == "done"
    monkeypatch.setattr(template_process, "RENDER_TIMEOUT_S", 0.7)

    async def run() -> int:
        rendering = asyncio.ensure_future(asyncio.to_thread(processes.render, ENDLESS_FOR_USERS, CHAT, now=NOW))
        turns = 0
        while not rendering.done():
            await asyncio.sleep(0.01)
            turns += 1
        with pytest.raises(PromptRefused, match="too long"):
            await rendering
        return turns

    assert asyncio.run(run()) > 5
    monkeypatch.setattr(template_process, "RENDER_TIMEOUT_S", 10.0)
    assert processes.render(ENDLESS_FOR_USERS, OTHER, now=NOW) == "done"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param(GROWING + "{{ n.t }}", "memory|took too long", marks=THOROUGH),
        ("{% for a in range(99999) %}{{ 'x' * 100 }}\n{% endfor %}", "writes more than"),
        ("{{ raise_exception('Roles must alternate.') }}", f"{REFUSED}: Roles must alternate\\.$"),
        ("{% if %}", REFUSED),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", REFUSED),
        ("{% set n = namespace(_a=1) %}", REFUSED),
        ("{% set n = namespace() %}{% set n.__class__ = 1 %}", REFUSED),
    ],
)
def test_one_that_takes_too_much_fails_or_reaches_out_is_refused_in_a_sentence(source: str, reason: str) -> None:
    with pytest.raises(PromptRefused, match=reason):
        TemplateProcesses().render(source, CHAT, now=NOW)


def test_a_template_gives_a_text_again_and_again_and_its_process_ends_with_it() -> None:
    processes = TemplateProcesses()
    template = "{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% endfor %}"
    assert {processes.render(template, CHAT, now=NOW) for _ in range(3)} == {"<user>hé 🙂"}
    [kept] = processes._idle
    pid = kept._process.pid
    # Ctrl-C in a terminal is for the processes of this group.
    assert os.getpgid(pid) != os.getpgid(0)
    del kept, processes
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
