"""The formats in which models call tools, and how a chat template tells which of them its model writes. Pure."""

from dataclasses import dataclass
from typing import Final

from cosine_p2p.replies.calls import CallFormat
from cosine_p2p.replies.gemma_calls import GemmaCalls
from cosine_p2p.replies.json_calls import JsonCalls
from cosine_p2p.replies.named_calls import NamedCalls
from cosine_p2p.replies.pythonic_calls import PythonicCalls
from cosine_p2p.replies.reasoning import ReasoningMarks, reasoning_of
from cosine_p2p.replies.tagged_calls import TaggedCalls

HERMES: Final = JsonCalls(begins=("<tool_call>",), ends=("</tool_call>",))
"""What is asked of models whose template knows no tools, too."""


def _arg_pairs(suffix: str, *, opens: str = "", closes: str = "", name_ends: str = "") -> TaggedCalls:
    """Names and values in tags of their own, as GLM writes them."""
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
    """Calls and parameters with a name in quotes, as MiniMax and DeepSeek V3.2 write them."""
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
    """As Qwen3-Coder writes them."""
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
            ends=("```", "<｜tool▁call▁end｜>"),
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
    (("[TOOL_CALLS]",), JsonCalls(begins=("[TOOL_CALLS]",))),
    (("<|START_ACTION|>",), JsonCalls(begins=("<|START_ACTION|>",), ends=("<|END_ACTION|>",))),
    (
        ("Action:", "```json", "tool_name"),
        JsonCalls(begins=("Action: ```json", "Action:```json", "Action:\n```json"), ends=("```",)),
    ),
    (("<|tool_list_start|>",), PythonicCalls(begins=("<|tool_call_start|>",), ends="<|tool_call_end|>")),
    (("<|tool_call_start|>",), PythonicCalls(begins=("<|tool_call_start|>",), ends="<|tool_call_end|>")),
    (("<seed:tool_call>",), _functions("<seed:tool_call>", "</seed:tool_call>", on_lines=False)),
    (("<minimax:tool_call>",), _invocations("", section="minimax:tool_call")),
    (("<atem:function_calls>",), _invocations("atem:", section="atem:function_calls")),
    (
        ("<|tools_prefix|>",),
        JsonCalls(begins=("<|tools_prefix|>",), ends=("<|tools_suffix|>",), is_named_by_key=True),
    ),
    (
        ("<arg_key:opensource>",),
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
    (("<TOOLCALL>",), JsonCalls(begins=("<TOOLCALL>",), ends=("</TOOLCALL>",))),
    (("<|function_call|>",), JsonCalls(begins=("<|function_call|>",))),
    (("function call<|role_sep|>",), JsonCalls(begins=("<|message_sep|>\n\nfunction call<|role_sep|>\n",))),
    (("functools[",), JsonCalls(begins=("functools",))),
    (("<tool_calls>",), JsonCalls(begins=("<tool_calls>",), ends=("</tool_calls>",))),
    (("<tool_call>",), HERMES),
    (("<|tool_call|>", "<|/tool_call|>"), JsonCalls(begins=("<|tool_call|>",), ends=("<|/tool_call|>",))),
    (("<|tool_call|>",), JsonCalls(begins=("<|tool_call|>",))),
    (("[func_name1(",), PythonicCalls(begins=("<|python_tag|>", "["))),
    (("<|python_tag|>",), JsonCalls(begins=("<|python_tag|>", "{"))),
    (('"parameters": ',), JsonCalls(begins=("{",))),
)
"""The formats, each with what a template has in it whose model writes so; the first that fits counts."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the model of a template writes: its calls, its reasoning, or both in channels of their own.

    Without `calls` the format is not known.
    """

    calls: CallFormat | None
    reasoning: ReasoningMarks | None
    in_channels: bool = False

    @classmethod
    def of(cls, template: str) -> "Dialect":
        """The dialect of a chat template's model."""
        if "<|channel|>" in template and "<|message|>" in template:
            return cls(None, None, in_channels=True)
        calls = next((form for signs, form in FORMATS if all(sign in template for sign in signs)), None)
        return cls(calls, reasoning_of(template))


GENERIC: Final = JsonCalls(begins=("<tool_call>", "```json", "{", "["), ends=("</tool_call>", "```"))
"""For a template whose format is not known: an object with a name and arguments, wherever models put one."""
