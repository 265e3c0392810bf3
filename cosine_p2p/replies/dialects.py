"""The formats of tool calls, and the choice of one by the chat template. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cosine_p2p.replies.calls import CallFormat, ForcibleFormat
from cosine_p2p.replies.gemma_calls import GemmaCalls
from cosine_p2p.replies.harmony import channel_rule
from cosine_p2p.replies.json_calls import JsonCalls
from cosine_p2p.replies.named_calls import NamedCalls
from cosine_p2p.replies.pythonic_calls import PythonicCalls
from cosine_p2p.replies.reasoning import ReasoningMarks, reasoning_of
from cosine_p2p.replies.rules import Rules, Split
from cosine_p2p.replies.tagged_calls import TaggedCalls

HERMES: Final = JsonCalls(begins=("<tool_call>",), ends=("</tool_call>",), around="\n")
"""Also requested of models whose template has no tool support."""

LFM: Final = PythonicCalls(begins=("<|tool_call_start|>",), ends="<|tool_call_end|>")


def _arg_pairs(suffix: str, *, opens: str = "", closes: str = "", name_ends: str = "") -> TaggedCalls:
    """Return the format of GLM: names and values in separate tags."""
    return TaggedCalls(
        opens=opens,
        begins=f"<tool_call{suffix}>",
        name_ends=name_ends,
        key=f"<arg_key{suffix}>",
        key_ends=f"</arg_key{suffix}>",
        value_begins=f"<arg_value{suffix}>",
        value_ends=f"</arg_value{suffix}>",
        ends=f"</tool_call{suffix}>",
        closes=closes,
    )


def _invocations(mark: str, *, section: str) -> TaggedCalls:
    """Return the format of MiniMax and DeepSeek V3.2: calls and parameters with a name in quotes."""
    return TaggedCalls(
        opens=f"<{section}>",
        begins=f'<{mark}invoke name="',
        name_ends='">',
        key=f'<{mark}parameter name="',
        key_ends=">",
        value_ends=f"</{mark}parameter>",
        ends=f"</{mark}invoke>",
        closes=f"</{section}>",
    )


def _functions(opens: str, closes: str, *, on_lines: bool) -> TaggedCalls:
    """Return the format of Qwen3-Coder."""
    return TaggedCalls(
        opens=opens,
        begins="<function=",
        name_ends=">",
        key="<parameter=",
        key_ends=">",
        value_ends="</parameter>",
        ends="</function>",
        closes=closes,
        on_lines=on_lines,
    )


def _in_list(begins: str, *ends: str, name: str = "name", arguments: str = "arguments") -> JsonCalls:
    return JsonCalls(begins=(begins,), ends=ends, name=name, arguments=arguments, in_list=True)


FORMATS: Final[tuple[tuple[tuple[str, ...], CallFormat], ...]] = (
    (
        ("<|open|>", "argument"),
        TaggedCalls(
            opens="<|open|>tools<|sep|>",
            begins='<|open|>call tool="',
            name_ends="<|sep|>",
            key='<|open|>argument key="',
            key_ends="<|sep|>",
            value_ends="<|close|>argument<|sep|>",
            ends="<|close|>call<|sep|>",
            closes="<|close|>tools<|sep|>",
        ),
    ),
    (
        ("<|tool_call_argument_begin|>",),
        NamedCalls(
            opens="<|tool_calls_section_begin|>",
            begins="<|tool_call_begin|>",
            arguments="<|tool_call_argument_begin|>",
            ends=("<|tool_call_end|>",),
            closes="<|tool_calls_section_end|>",
            before=r"functions\.",
            after=r":[0-9]{1,3}",
        ),
    ),
    (
        ("<|tool_call:begin|>",),
        NamedCalls(
            opens="<|tool_calls|>",
            begins="<|tool_call:begin|>",
            names="<|tool_call:name|>",
            arguments="<|tool_call:args|>",
            ends=("<|tool_call:end|>",),
            closes="<|calls|>",
            before="[a-z0-9]{10}",
        ),
    ),
    (("<|tool_call>call:",), GemmaCalls(begins="<|tool_call>call:", ends="<tool_call|>", quote='<|"|>')),
    (
        ("<start_function_call>",),
        GemmaCalls(begins="<start_function_call>call:", ends="<end_function_call>", quote="<escape>"),
    ),
    (("｜DSML｜", "function_calls"), _invocations("｜DSML｜", section="｜DSML｜function_calls")),
    (("｜DSML｜",), _invocations("｜DSML｜", section="｜DSML｜tool_calls")),
    (
        ("<｜tool▁call▁begin｜>", "```json"),
        NamedCalls(
            opens="<｜tool▁calls▁begin｜>",
            begins="<｜tool▁call▁begin｜>",
            names="<｜tool▁sep｜>",
            arguments="\n```json\n",
            ends=("\n```", "<｜tool▁call▁end｜>"),
            before="function",
            closes="<｜tool▁calls▁end｜>",
        ),
    ),
    (
        ("<｜tool▁call▁begin｜>",),
        NamedCalls(
            opens="<｜tool▁calls▁begin｜>",
            begins="<｜tool▁call▁begin｜>",
            arguments="<｜tool▁sep｜>",
            ends=("<｜tool▁call▁end｜>",),
            closes="<｜tool▁calls▁end｜>",
        ),
    ),
    (("[TOOL_CALLS]", "[ARGS]"), NamedCalls(begins="[TOOL_CALLS]", identity="[CALL_ID]", arguments="[ARGS]")),
    (("[TOOL_CALLS]",), _in_list("[TOOL_CALLS]")),
    (
        ("<|START_ACTION|>",),
        _in_list("<|START_ACTION|>", "<|END_ACTION|>", name="tool_name", arguments="parameters"),
    ),
    (
        ("Action:", "```json", "tool_name"),
        JsonCalls(
            begins=("Action: ```json", "Action:```json", "Action:\n```json"),
            ends=("```",),
            name="tool_name",
            arguments="parameters",
            in_list=True,
            around="\n",
        ),
    ),
    *((sign, LFM) for sign in (("<|tool_list_start|>",), ("<|tool_call_start|>",), ("List of tools: [",))),
    (("<seed:tool_call>",), _functions("<seed:tool_call>", "</seed:tool_call>", on_lines=False)),
    (("<minimax:tool_call>",), _invocations("", section="minimax:tool_call")),
    (("<atem:function_calls>",), _invocations("atem:", section="atem:function_calls")),
    (
        ("<|tools_prefix|>",),
        JsonCalls(begins=("<|tools_prefix|>",), ends=("<|tools_suffix|>",), is_named_by_key=True, in_list=True),
    ),
    (
        (":opensource",),
        _arg_pairs(
            ":opensource",
            opens="<tool_calls:opensource>",
            closes="</tool_calls:opensource>",
            name_ends="<tool_sep:opensource>",
        ),
    ),
    (("<arg_key>",), _arg_pairs("")),
    (
        ('<function name="', '<param name="'),
        TaggedCalls(
            begins='<function name="',
            name_ends='">',
            key='<param name="',
            key_ends='">',
            value_ends="</param>",
            ends="</function>",
        ),
    ),
    (("<function=", "<parameter="), _functions("<tool_call>", "</tool_call>", on_lines=True)),
    (("<function=",), NamedCalls(begins="<function=", arguments=">", ends=("</function>",))),
    (("<TOOLCALL>",), _in_list("<TOOLCALL>", "</TOOLCALL>")),
    (("<|function_call|>",), JsonCalls(begins=("<|function_call|>",))),
    (("function call", "<|role_sep|>"), JsonCalls(begins=("<|message_sep|>\n\nfunction call<|role_sep|>\n",))),
    (("functools[",), _in_list("functools")),
    (("<tool_calls>", "<tool_calls>["), _in_list("<tool_calls>", "</tool_calls>")),
    (("<tool_calls>",), JsonCalls(begins=("<tool_calls>",), ends=("</tool_calls>",), around="\n")),
    (("<tool_call>",), HERMES),
    (("<|tool_call|>", "<|/tool_call|>"), _in_list("<|tool_call|>", "<|/tool_call|>")),
    (("<|tool_call|>",), _in_list("<|tool_call|>")),
    (("[func_name1(",), PythonicCalls(begins=("[", "<|python_tag|>"))),
    (("<|python_tag|>",), JsonCalls(begins=("{", "<|python_tag|>"), arguments="parameters")),
    (('"parameters": ',), JsonCalls(begins=("{",), arguments="parameters")),
)
"""The formats, each with the texts by which its templates are recognised; the first match counts."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The formats of a model's calls and reasoning, or channels for both."""

    calls: CallFormat | None
    reasoning: ReasoningMarks | None
    in_channels: bool = False

    def grammar(self, split: Split, tools: Mapping[str, Any], *, several: bool, is_thinking: bool) -> str:
        """Return a Lark grammar for replies that call a tool, or `several`; with `is_thinking` after reasoning."""
        rules = Rules(split)
        if self.in_channels:
            return rules.grammar(channel_rule(rules, tools))
        assert isinstance(self.calls, ForcibleFormat)
        calls = self.calls.rule(rules, tools, several=several)
        if self.reasoning is None:
            return rules.grammar(calls)
        thought = f"{rules.text_before(self.reasoning.ends)} /[ \\n]{{0,4}}/"
        if is_thinking:
            return rules.grammar(f"{thought} {calls}")
        return rules.grammar(f"({rules.mark(self.reasoning.begins)} {thought})? {calls}")

    @property
    def forcible(self) -> "Dialect":
        """The dialect of a reply with forced calls: those with other arguments than JSON are in Hermes' format."""
        return self if self.in_channels or isinstance(self.calls, ForcibleFormat) else replace(self, calls=HERMES)

    @classmethod
    def of(cls, template: str) -> "Dialect":
        if "<|channel|>" in template and "<|message|>" in template:
            return cls(None, None, in_channels=True)
        calls = next((form for signs, form in FORMATS if all(sign in template for sign in signs)), None)
        return cls(calls, reasoning_of(template))


GENERIC: Final = JsonCalls(begins=("<tool_call>", "```json", "{", "["), ends=("</tool_call>", "```"))
"""The format for unknown templates: an object with a name and arguments, with any common mark."""
