"""Calls and reasoning that real chat templates write are read back unchanged.

The templates have many licences and are not part of the repository: `COSINE_CHAT_TEMPLATES`
names an archive or a folder of them, such as `models/templates` of llama.cpp.
"""

import json
import os
import re
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_p2p.replies.dialects import GENERIC, Dialect
from cosine_p2p.replies.parts import Part, Reply
from cosine_p2p.replies.reader import ReplyReader
from cosine_p2p.text.chat_template import ChatTemplates
from cosine_protocol.errors import PromptRefused

PLACE: Final = os.environ.get("COSINE_CHAT_TEMPLATES", "")
pytestmark = pytest.mark.skipif(not PLACE, reason="COSINE_CHAT_TEMPLATES names no chat templates of others.")

USER: Final = "QUESTION"
WEATHER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "days": {"type": "integer", "description": "How many."},
        "units": {"type": "array", "items": {"type": "string"}, "description": "Which."},
    },
    "required": ["city"],
}
ADD: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {name: {"type": "number", "description": "A number."} for name in ("a", "b")},
    "required": ["a", "b"],
}
SCHEMAS: Final = {"get_weather": WEATHER, "add": ADD}
TOOLS: Final = [
    {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
CALLS: Final = [
    ("get_weather", {"city": 'Paris, "old" part', "days": 3, "units": ["C", "F"]}),
    ("add", {"a": 1, "b": -2.5}),
]
WRITES_NO_CALLS: Final = frozenset({
    "HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "LFM2.5-Instruct",
    "ibm-granite-granite-3.3-2B-Instruct", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
})  # fmt: skip
"""Templates that omit the calls of earlier turns."""

UNREAD: Final = {
    "MiniMax-M3": "values are nested tags",
    "meetkai-functionary-medium-v3.2": "a prompt ends where a name is to come",
    "muse-glimmer": "recipients stand in headers",
    "NVIDIA-Nemotron-Nano-v2": "it begins reasoning and never ends it",
}
"""Templates that are not read, with the reason."""


@cache
def templates() -> Mapping[str, str]:
    """Return the templates with tools, by name."""
    place = Path(PLACE)
    if place.is_dir():
        found = {file.stem: file.read_text("utf-8") for file in place.glob("*.jinja")}
    else:
        with tarfile.open(place) as archive:
            files = {Path(each.name).stem: archive.extractfile(each) for each in archive if each.isfile()}
            found = {name: file.read().decode() for name, file in files.items() if file is not None}
    return {name: text for name, text in sorted(found.items()) if "tool" in text}


@cache
def processes() -> ChatTemplates:
    return ChatTemplates(templates())


def rendered(name: str, calls: list[tuple[str, Any]], content: str) -> tuple[str, str]:
    """The text of a chat whose last message calls, and of one that asks for an answer."""
    listed: list[dict[str, Any]] = [
        {"id": f"call0000{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    answer = {"role": "assistant", "content": content, "reasoning_content": "THOUGHT", "tool_calls": listed}
    question = {"role": "user", "content": USER}

    def text(messages: list[Any], *, begins: bool) -> str:
        values = {"bos_token": "<s>", "eos_token": "</s>", "xml_tools": TOOLS}
        return processes().render(
            messages,
            tools=TOOLS,
            documents=None,
            add_generation_prompt=begins,
            continue_final_message=False,
            template=name,
            values=values,
        )

    try:
        whole = text([question, answer], begins=False)
    except PromptRefused:
        for call in listed:
            call["function"] |= {"arguments": json.dumps(call["function"]["arguments"])}
        whole = text([question, answer], begins=False)
    return whole, text([question], begins=True)


def read(template: str, whole: str, asked: str) -> Reply:
    """The reply in a whole chat, read as if its model wrote it after the prompt that asks for it."""
    pairs = zip(whole, asked, strict=False)
    common = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(whole), len(asked)))
    start = common
    if common < len(asked):
        # Not within a mark with which both go on.
        start = whole.rindex(USER) + len(USER)
        start += max((found.end() for found in re.finditer(r"[>\]:\n]\s*", whole[start:common])), default=0)
    dialect = Dialect.of(template)
    if dialect.calls is None and not dialect.in_channels:
        dialect = Dialect(GENERIC, dialect.reasoning)
    is_thinking = False
    if marks := dialect.reasoning:
        # Some templates leave the mark out that the prompt had.
        is_left_out = marks.begins not in whole[start:] and marks.ends in whole[start:]
        is_thinking = marks.is_open(whole[:start]) or (is_left_out and marks.is_open(asked))
    reader = ReplyReader(dialect, tools=SCHEMAS, call_id=str, is_thinking=is_thinking)
    parts: list[Part] = []
    for piece in re.findall(r"(?s)<[|｜][^<>\n]{1,40}[|｜]>|.", whole[start:]):
        # Whatever looks like one is a special token here; those that no format knows are left out.
        parts += reader.add(piece, is_special=len(piece) > 1)
    return Reply.of([*parts, *reader.finish()])


@pytest.mark.parametrize("content", ["", "Let me see."])
@pytest.mark.parametrize("name", templates() if PLACE else [])
def test_calls_are_read_back(name: str, content: str) -> None:
    if name in UNREAD:
        pytest.skip(UNREAD[name])
    template = templates()[name]
    for calls in (CALLS, CALLS[:1]):
        try:
            whole, asked = rendered(name, calls, content)
        except PromptRefused as refused:
            if len(calls) > 1:
                continue
            pytest.skip(f"It refuses such a chat: {refused}")
        if name in WRITES_NO_CALLS:
            assert '"old"' not in whole.replace("\\", "")
            continue
        expected = calls if calls[-1][0] in whole[whole.rindex(USER) :] else calls[:1]
        reply = read(template, whole, asked)
        assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == expected
        if "THOUGHT" in whole[whole.rindex(USER) :]:
            assert reply.reasoning == "THOUGHT", repr(whole[whole.rindex(USER) :][:150]) + repr(asked[-60:])


def test_most_formats_are_known() -> None:
    dialects = {name: Dialect.of(text) for name, text in templates().items()}
    unknown = [name for name, of in dialects.items() if of.calls is None and not of.in_channels]
    assert len(unknown) <= len(dialects) // 10, unknown
