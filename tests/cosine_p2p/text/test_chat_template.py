"""Chat templates are strangers' programs: what they do costs their target's own requests, and nobody else's."""

import asyncio
import os

import pytest

from cosine_p2p.text import chat_template
from cosine_p2p.text.chat_template import ChatTemplate
from cosine_protocol.errors import PromptRefused

CHAT = {"messages": [{"role": "user", "content": "hé 🙂"}]}
ENDLESS = "{% for a in range(99999) %}" * 4 + "{% endfor %}" * 4
REFUSED = "The target's chat template refused the messages"
GROWING = "{% set n = namespace(t='x') %}{% for a in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}"


def test_one_without_an_end_is_ended_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway answers others meanwhile, and the next chat gets a process of its own."""
    template = ChatTemplate("{% if messages[0].role == 'user' %}" + ENDLESS + "{% endif %}done")
    assert template.render({"messages": [{"role": "other"}]}) == "done"
    monkeypatch.setattr(chat_template, "RENDER_TIMEOUT_S", 0.7)

    async def run() -> int:
        rendering = asyncio.ensure_future(asyncio.to_thread(template.render, CHAT))
        turns = 0
        while not rendering.done():
            await asyncio.sleep(0.01)
            turns += 1
        with pytest.raises(PromptRefused, match="too long"):
            await rendering
        return turns

    assert asyncio.run(run()) > 5
    monkeypatch.setattr(chat_template, "RENDER_TIMEOUT_S", 10.0)
    assert template.render({"messages": [{"role": "other"}]}) == "done"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (GROWING + "{{ n.t }}", "memory|took too long"),
        ("{{ 'x' * 9999999999 }}", "memory|took too long"),
        ("{% for a in range(99999) %}{{ 'x' * 100 }}\n{% endfor %}", "writes more than"),
        ("{{ raise('no') }}", REFUSED),
        ("{% if %}", REFUSED),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", REFUSED),
        ("{{ 1 / 0 }}", REFUSED),
        ("{{ '\\ud800' }}", REFUSED),
    ],
)
def test_one_that_takes_too_much_fails_or_reaches_out_is_refused_in_a_sentence(source: str, reason: str) -> None:
    with pytest.raises(PromptRefused, match=reason):
        ChatTemplate(source).render(CHAT)


def test_a_template_gives_a_text_again_and_again_and_its_process_ends_with_it() -> None:
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% endfor %}")
    assert {template.render(CHAT) for _ in range(3)} == {"<user>hé 🙂"}
    worker = template._worker
    assert worker is not None
    pid = worker._process.pid
    del worker, template
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
