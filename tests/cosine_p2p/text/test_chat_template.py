"""Chat templates are strangers' programs: what they do costs their target's own requests, and nobody else's."""

import asyncio
import os

import pytest

from cosine_p2p.text import chat_template, template_worker
from cosine_p2p.text.chat_template import ChatTemplate
from cosine_protocol.errors import PromptRefused

CHAT = {"messages": [{"role": "user", "content": "hé 🙂"}]}
ENDLESS = "{% for a in range(99999) %}" * 4 + "{% endfor %}" * 4
GROWING = "{% set n = namespace(t='x') %}{% for a in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}"


def test_a_template_gives_a_text_again_and_again() -> None:
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% endfor %}")
    assert {template.render(CHAT) for _ in range(3)} == {"<user>hé 🙂"}


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


@pytest.mark.parametrize("source", [GROWING, GROWING + "{{ n.t }}", "{{ 'x' * 9999999999 }}"])
def test_one_that_fills_the_memory_is_refused(source: str) -> None:
    with pytest.raises(PromptRefused, match=r"memory|took too long"):
        ChatTemplate(source).render(CHAT)


def test_one_that_writes_too_much_is_refused() -> None:
    lines = "{% for a in range(99999) %}{{ 'x' * 100 }}\n{% endfor %}"
    with pytest.raises(PromptRefused, match="writes more than"):
        ChatTemplate(lines).render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise('no') }}",
        "{% if %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ 1 / 0 }}",
        "{{ '\\ud800' }}",
    ],
)
def test_one_that_fails_or_reaches_out_is_refused_in_a_sentence(source: str) -> None:
    with pytest.raises(PromptRefused, match="The target's chat template refused the messages"):
        ChatTemplate(source).render(CHAT)


def test_its_process_ends_with_it() -> None:
    template = ChatTemplate("text")
    assert template.render(CHAT) == "text"
    worker = template._worker
    assert worker is not None
    pid = worker._process.pid
    del worker, template
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_question_is_answered_with_a_text_or_an_error() -> None:
    asked = {"template": "{{ a }}{{ b }}", "values": {"a": "xy", "b": "z"}, "max_characters": 3}
    assert template_worker.answer(asked) == {"text": "xyz"}
    assert template_worker.answer(asked | {"max_characters": 2}) == {"error": "it writes more than 2 characters"}
