"""Tests that chats are rendered as in transformers."""

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from cosine_engine.zoo.family import tokenizer_folder
from cosine_p2p.text.chat_template import ChatTemplates
from cosine_protocol.errors import PromptRefused

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL = {
    "type": "function",
    "function": {"name": "größe", "description": "a <b> & 'c'", "parameters": {"z": 1, "a": 2}},
}
CHAT = [
    {"role": "user", "content": "Is 1 < 2 & 'é'?"},
    {"role": "assistant", "content": " yes, ", "reasoning": "hm"},
]
TEMPLATES = {
    "globals": "{{ bos_token }}{% if tools is none %}none{% endif %}{% if documents is defined %}defined{% endif %}"
    "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}",
    "json": "{{ messages | tojson }}{{ tools | tojson(indent=2, ensure_ascii=True) }}"
    "{{ messages[0] | tojson(separators=(',', ':'), sort_keys=True) }}",
    "loops": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}"
    "{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}",
    "generation": "{% set a = 1 %}{% for m in messages %}{{ m.role }}\n  {% generation %}\n{% set a = 2 %}"
    "{{ m['content'] }}{{ a }}{%- endgeneration %}\n{{ a }}{% endfor %}",
    "namespaces": "{% set n = namespace(x=dict(a=1), self=2) %}{% set n.x = dict.fromkeys('ab', 3) %}"
    "{{ n.x }}{{ n.self }}",
    "reasoning": "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }}|{{ m.reasoning }};{% endfor %}",
    "options": "{{ enable_thinking }}{{ add_generation_prompt }}{{ eos_token }}{{ undefined_one }}",
    "refusal": "{{ raise_exception('No: ' ~ messages[0].content) }}",
    "stripped": "{% for m in messages %}<{{ m.content | trim }}>{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}go{% endif %}",
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}
NOON = datetime(2026, 11, 26, 12)


class Noon(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> "Noon":
        return cls(2026, 11, 26, 12)


def ours(named: dict[str, str]) -> ChatTemplates:
    return ChatTemplates(named, now=lambda: NOON)


OURS = ours({"default": TEMPLATES["chatml"], **TEMPLATES})


@pytest.fixture(autouse=True)
def _at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", Noon)


def theirs(stated: Any) -> Any:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_folder() / "tokenizer.json"), **SPECIAL)
    tokenizer.chat_template = stated
    return tokenizer


THEIRS = theirs({"default": TEMPLATES["chatml"], **TEMPLATES})


def rendered(templates: ChatTemplates, messages: Any, *, template: str | None = None, **given: Any) -> str:
    plan = {"tools": None, "documents": None, "add_generation_prompt": False, "continue_final_message": False}
    fixed = {name: given.pop(name, value) for name, value in plan.items()}
    return templates.render(messages, **fixed, template=template, values={**SPECIAL, **given})


def both(messages: Any, *, template: str | None = None, **given: Any) -> tuple[str | None, str | None]:
    """Return the texts of this project and of transformers; None for a refusal."""
    texts: list[str | None] = []
    for render in (
        lambda: rendered(OURS, messages, template=template, **given),
        lambda: THEIRS.apply_chat_template(messages, chat_template=template, tokenize=False, **given),
    ):
        try:
            texts.append(render())
        except Exception:  # of whatever class there
            texts.append(None)
    return texts[0], texts[1]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, [], [TOOL]])
def test_a_chat_is_rendered_as_transformers_renders_it(name: str, tools: Any) -> None:
    for more in ({}, {"enable_thinking": False, "documents": [{"title": "a", "text": "b"}], "bos_token": "x"}):
        one, other = both(CHAT, template=name, tools=tools, **more)
        assert one == other
        assert (one is None) == (name == "refusal")


PARTS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, st.text()), max_size=3)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={
        "content": st.one_of(st.none(), st.text(), PARTS),
        "reasoning_content": st.one_of(st.none(), st.text()),
        "thinking": st.text(),
        "tool_calls": st.lists(st.just({"function": {"name": "f", "arguments": {"a": 1.5}}}), max_size=1),
    },
)


@given(
    chat=st.lists(MESSAGES, min_size=1, max_size=3),
    name=st.sampled_from(sorted(TEMPLATES)),
    continued=st.sampled_from([False, True, "reasoning_content", "thinking"]),
    is_ready=st.booleans(),
)
def test_any_chat_is_rendered_or_refused_alike(chat: Any, name: str, continued: Any, is_ready: bool) -> None:
    one, other = both(
        chat, template=name, continue_final_message=continued, add_generation_prompt=is_ready and not continued
    )
    assert one == other


DEFAULT, TOOLS = "one", "{{ tools | length }} tools"
NAMED = [{"name": "default", "template": DEFAULT}, {"name": "tool_use", "template": TOOLS}]
CONFIG, JSON = "tokenizer_config.json", "chat_template.json"


def stated(name: str, templates: Any) -> dict[str, bytes]:
    return {name: json.dumps({"chat_template": templates}).encode()}


@pytest.mark.parametrize(
    ("files", "plain", "with_tools"),
    [
        ({"chat_template.jinja": b"own", **stated(CONFIG, "config")}, "own", "own"),
        (stated(CONFIG, NAMED), DEFAULT, "1 tools"),
        (stated(CONFIG, NAMED[1:]), None, "1 tools"),
        (stated(JSON, "processor"), "processor", "processor"),
        ({**stated(JSON, "processor"), **stated(CONFIG, "config")}, "config", "config"),
        (
            {"chat_template.jinja": b"own", "additional_chat_templates/tool_use.jinja": TOOLS.encode()}
            | stated(CONFIG, "config"),
            "own",
            "1 tools",
        ),
        ({"additional_chat_templates/default.jinja": b"more", "chat_template.jinja": b"own"}, "more", "more"),
        ({}, None, None),
    ],
)
def test_the_template_is_found(files: dict[str, bytes], plain: str | None, with_tools: str | None) -> None:
    templates = ChatTemplates.read(files)
    for expected, tools in ((plain, None), (with_tools, [TOOL])):
        if expected is None:
            with pytest.raises(PromptRefused, match=r"no chat template|several chat templates"):
                rendered(templates, CHAT, tools=tools)
        else:
            assert rendered(templates, CHAT, tools=tools) == expected
