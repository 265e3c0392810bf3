"""Tests of the reader of replies, for each format of calls and reasoning."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosine_p2p.replies.dialects import FORMATS, GENERIC, HERMES, Dialect
from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Part, Reply
from cosine_p2p.replies.reader import ReplyReader
from cosine_p2p.replies.reasoning import KNOWN, ReasoningMarks

TOOLS: Final[dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "in": {"type": "array"}},
    },
    "now": None,
}
PARIS: Final = ("weather", {"city": 'the "old" Paris', "days": 3, "in": ["C", "F"]})
NOW: Final[tuple[str, dict[str, Any]]] = ("now", {})
THINK: Final = KNOWN[-1]
ARGUMENTS: Final = json.dumps(PARIS[1])

# Replies by format, with a template that has its signs.
JSON_CALL: Final = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
WRITTEN: Final[dict[str, tuple[str, str]]] = {
    "Hermes": (
        "<tool_call>",
        f'<tool_call>\n{JSON_CALL}\n</tool_call>\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>',
    ),
    "Granite": ("<|tool_call|>", f'<|tool_call|>[{JSON_CALL}, {{"arguments": {{}}, "name": "now"}}]'),
    "Nemotron": ("<TOOLCALL>", f'<TOOLCALL>[{JSON_CALL}, {{"name": "now"}}]</TOOLCALL>'),
    "Command R": (
        "<|START_ACTION|>",
        f'<|START_ACTION|>[\n {{"tool_call_id": "0", "tool_name": "weather", "parameters": {ARGUMENTS}}},\n'
        ' {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
    ),
    "Llama 3": (
        "<|python_tag|>",
        f'{{"name": "weather", "parameters": {ARGUMENTS}}}; {{"name": "now", "parameters": {{}}}}',
    ),
    "Llama 3 with a tag": (
        "<|python_tag|>",
        f'<|python_tag|>{{"type": "function", "name": "weather", "parameters": {ARGUMENTS}}};{{"name": "now"}}',
    ),
    "Mistral": (
        "[TOOL_CALLS]",
        f'[TOOL_CALLS][{JSON_CALL}, {{"name": "now", "arguments": {{}}, "id": "abcdefghi"}}]',
    ),
    "Mistral 3": (
        "[TOOL_CALLS][ARGS]",
        f"[TOOL_CALLS]weather[CALL_ID]123[ARGS]{ARGUMENTS}[TOOL_CALLS]now[ARGS]{{}}",
    ),
    "Apertus": (
        "<|tools_prefix|>",
        f'<|tools_prefix|>[{{"weather": {ARGUMENTS}}}, {{"now": {{}}}}]<|tools_suffix|>',
    ),
    "DeepSeek": (
        "<｜tool▁call▁begin｜>```json",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{ARGUMENTS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "DeepSeek 3.1": (
        "<｜tool▁call▁begin｜>",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "DeepSeek 3.2": (
        "｜DSML｜function_calls",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">the "old" Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="in" string="false">["C", "F"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    ),
    "Kimi K2": (
        "<|tool_call_argument_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "Functionary": ("<function=", f"<function=weather>{ARGUMENTS}</function><function=now>{{}}</function>"),
    "Qwen3-Coder": (
        "<function=<parameter=",
        '<tool_call>\n<function=weather>\n<parameter=city>\nthe "old" Paris\n</parameter>\n<parameter=days>\n3\n'
        '</parameter>\n<parameter=in>\n["C", "F"]\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    ),
    "Seed": (
        "<seed:tool_call>",
        '<seed:tool_call>\n<function=weather>\n<parameter=city>the "old" Paris</parameter>\n'
        "<parameter=days>3</parameter>\n<parameter=in>['C', 'F']</parameter>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
    ),
    "GLM": (
        "<arg_key>",
        '<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>the "old" Paris</arg_value>\n'
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>in</arg_key>\n"
        '<arg_value>["C", "F"]</arg_value>'
        "\n</tool_call>\n<tool_call>now\n</tool_call>",
    ),
    "MiniMax": (
        "<minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">the "old" Paris</parameter>\n'
        '<parameter name="days">3</parameter>\n<parameter name="in">["C", "F"]</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    ),
    "Llama 4": ("[func_name1(", "[weather(city='the \"old\" Paris', days=3, in=['C', 'F']), now()]"),
    "LFM2": (
        "<|tool_call_start|>",
        '<|tool_call_start|>[weather(city="the \\"old\\" Paris", days=3, in=["C", "F"]), now()]<|tool_call_end|>',
    ),
    "Gemma 4": (
        "<|tool_call>call:",
        '<|tool_call>call:weather{city:<|"|>the "old" Paris<|"|>,days:3,in:[<|"|>C<|"|>,<|"|>F<|"|>]}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
    ),
    "gpt-oss": (
        "<|channel|><|message|>",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        f"{ARGUMENTS}<|call|><|start|>assistant<|channel|>commentary to=functions.now<|message|>{{}}<|call|>",
    ),
    "any": ("tools", f'```json\n[{JSON_CALL}, {{"name": "now"}}]\n```'),
}


def dialect_of(template: str) -> Dialect:
    dialect = Dialect.of(template)
    calls = GENERIC if dialect.calls is None and not dialect.in_channels else dialect.calls
    return Dialect(calls, dialect.reasoning, dialect.in_channels)


def read(
    pieces: Iterable[str], dialect: Dialect, *, tools: dict[str, Any] | None = None, **options: Any
) -> tuple[list[Part], Reply]:
    given = TOOLS if tools is None else tools
    reader = ReplyReader(dialect, tools=given, call_id=lambda index: f"id{index}", **options)
    parts = [part for piece in pieces for part in reader.add(piece)]
    parts += reader.finish()
    return parts, Reply.of(parts)


def calls_of(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]


@pytest.mark.parametrize("family", WRITTEN)
@pytest.mark.parametrize("before", ["", "Let me see."])
def test_calls_are_read_in_the_format_of_the_template(family: str, before: str) -> None:
    template, written = WRITTEN[family]
    if before and template in ("<|python_tag|>", "[func_name1(", "tools"):
        # Such a call begins with its bracket, which may be anything within a text.
        before = ""
    _, reply = read([before + written], dialect_of(template))
    assert calls_of(reply) == [PARIS, NOW]
    assert (reply.content, reply.reasoning) == (before, "")


@given(family=st.sampled_from(sorted(WRITTEN)), is_thinking=st.booleans(), data=st.data())
@settings(max_examples=8 * settings().max_examples)
def test_whatever_the_pieces_the_same_reply_comes(family: str, is_thinking: bool, data: Any) -> None:
    template, written = WRITTEN[family]
    # Cut anywhere, with a piece lost or doubled, and with other text around it: much of it is no call any more.
    text = data.draw(st.sampled_from(["", " ", "<think>hm</think>\n", "[x] ", '{"a": 1}'])) + written
    begin, end = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=2)))
    text = data.draw(st.sampled_from([text, text[:end], text[:begin] + text[end:], text[:end] + text[begin:]]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[one:other] for one, other in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    dialect = Dialect(dialect_of(template).calls, THINK, dialect_of(template).in_channels)
    _, whole = read([text], dialect, is_thinking=is_thinking)
    assert (
        read(pieces, dialect, is_thinking=is_thinking)[1]
        == read(text, dialect, is_thinking=is_thinking)[1]
        == whole
    )


@given(form=st.sampled_from([*(form for _, form in FORMATS), GENERIC]), text=st.text(max_size=60), data=st.data())
@settings(max_examples=5 * settings().max_examples)
def test_no_text_is_an_error(form: Any, text: str, data: Any) -> None:
    marks = st.sampled_from(
        [*filter(None, form.told), "weather", "now", "{", "}", '"name": "now"', "(", ")", "=", "\n"]
    )
    pieces = data.draw(st.lists(marks | st.just(text), max_size=12))
    _, reply = read(pieces, Dialect(form, THINK))
    assert read(["".join(pieces)], Dialect(form, THINK))[1] == reply


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nnot JSON\n</tool_call>",
        '<tool_call>{"nome": "now"}</tool_call>',
        '{"name": "now", "arguments": {}}',
        "<tool_call>{}</tool_call> and more",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    _, reply = read(text, Dialect(HERMES, None))
    assert reply == Reply(content=text)


@pytest.mark.parametrize(
    ("written", "schema", "value"),
    [
        ("02134", {"type": "string"}, "02134"),
        ("21340", {"$ref": "#/$defs/a~1b"}, "21340"),
        ("21340", {"type": ["string", "integer"]}, 21340),
        ("1", {"enum": ["1", 2]}, "1"),
        ("1e999", {"type": "number"}, "1e999"),
        ("0x1F", {}, "0x1F"),
        ("1_000", {"type": "integer"}, 1000),
        ("{'a': [True, None]}", {}, {"a": [True, None]}),
    ],
)
@pytest.mark.parametrize("template", ["<function=|<parameter=", "<arg_key>", "<minimax:tool_call>"])
def test_a_value_in_tags_has_the_type_of_its_schema(template: str, written: str, schema: Any, value: Any) -> None:
    tools = {"f": {"$defs": {"a/b": {"type": "string"}}, "allOf": [{"properties": {"p": schema}}]}}
    texts = {
        "<function=|<parameter=": f"<tool_call><function=f>\n<parameter=p>\n{written}\n</parameter>\n</function>\n"
        "</tool_call>",
        "<arg_key>": f"<tool_call>f\n<arg_key>p</arg_key>\n<arg_value>{written}</arg_value>\n</tool_call>",
        "<minimax:tool_call>": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="p">'
        f"{written}</parameter>\n</invoke>\n</minimax:tool_call>",
    }
    (call,) = read([texts[template]], dialect_of(template), tools=tools)[1].tool_calls
    assert json.loads(call.arguments) == {"p": value}


@pytest.mark.parametrize("marks", KNOWN)
def test_reasoning_is_told_apart(marks: ReasoningMarks) -> None:
    dialect = Dialect(None, marks)
    text = f"{marks.begins}\nWell, well.\n{marks.ends}\n\nHello"
    assert read(text, dialect)[1] == Reply(content="Hello", reasoning="Well, well.")
    # The prompt may have begun it, and the model may begin it once more.
    opened = f"Question\n{marks.begins}\n"
    assert marks.is_open(opened) and not marks.is_open(opened + marks.ends)
    for said in (text, text.removeprefix(marks.begins)):
        assert read(said, dialect, is_thinking=True)[1] == read(text, dialect)[1]


def test_reasoning_comes_before_all_else_or_it_is_content() -> None:
    text = "The tag <think> begins it."
    assert read(text, Dialect(None, THINK))[1] == Reply(content=text)


def test_channels_are_told_apart() -> None:
    dialect = Dialect.of("<|channel|><|message|>")
    said = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I ask.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hello<|return|>"
    )
    assert read([said], dialect, tools={})[1] == Reply(content="I ask.Hello", reasoning="Hm.")
    assert read(["Hello"], dialect, tools={})[1] == Reply(content="Hello")
    assert read(["<|channel|>ana"], dialect, tools={})[1] == Reply()


def test_special_tokens_stand_for_marks_and_for_nothing_else() -> None:
    reader = ReplyReader(Dialect.of("[TOOL_CALLS]"), tools=TOOLS, call_id=str)
    pieces: Sequence[tuple[str, bool]] = [
        ("Hi", False),
        ("<s>", True),
        ("[TOOL_CALLS]", True),
        ('[{"name": "now"}]', False),
        ("</s>", True),
    ]
    parts = [part for text, is_special in pieces for part in reader.add(text, is_special=is_special)]
    assert [*parts, *reader.finish()] == [Content("Hi"), CallBegun(0, "0", "now"), CallArguments(0, "{}")]
