"""The form of the reply to a chat, by the target's template and the chat's options."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cosine_p2p.replies.dialects import GENERIC, HERMES, Dialect
from cosine_p2p.replies.reader import ReplyReader
from cosine_p2p.replies.rules import TooManyRules
from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.errors import OptionRefused, PromptRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyForm:
    """The form of a reply: dialect, tools, whether it begins within reasoning; `grammar` forces a call."""

    dialect: Dialect
    tools: Mapping[str, Any]
    is_thinking: bool = False
    most_calls: int | None = None
    grammar: str | None = None

    def reader(self, call_id: Callable[[int], str]) -> ReplyReader:
        return ReplyReader(
            self.dialect,
            tools=self.tools,
            call_id=call_id,
            is_thinking=self.is_thinking,
            most_calls=self.most_calls,
        )


def usable_tools(chat: Chat) -> Sequence[Mapping[str, Any]]:
    return () if chat.tool_choice is ToolChoice.NONE else tuple(chat.tools or ())


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schemas of arguments by function name. Raises `PromptRefused` for other tools."""
    found = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise PromptRefused("Each tool of a chat must be a function with a name.")
        found[name] = function.get("parameters")
    return found


def check_choice(chat: Chat) -> None:
    """Raise `OptionRefused` for a required tool that does not exist."""
    names = schemas_of(chat.tools or ())
    choice = chat.tool_choice
    if isinstance(choice, NamedTool) and choice.name not in names:
        raise OptionRefused("tool_choice", f"tool_choice names {choice.name!r}, which is none of the tools.")
    if choice is ToolChoice.REQUIRED and not names:
        raise OptionRefused("tool_choice", "tool_choice needs tools to choose from; give some.")


def reply_form(codec: TextTokenizer, chat: Chat, prompt: str, *, describes_tools: bool) -> ReplyForm:
    """Return the form of the reply to a checked chat; `describes_tools`: its tools are described as text."""
    tools = schemas_of(usable_tools(chat))
    dialect = Dialect.of(codec.chat_template(chat.template, has_tools=bool(tools) and not describes_tools))
    if describes_tools:
        dialect = replace(dialect, calls=HERMES)
    elif dialect.calls is None:
        dialect = replace(dialect, calls=GENERIC)
    last = chat.messages[-1]
    said = last["content"] if last["role"] == "assistant" else ""
    if not said.strip() or not prompt.rstrip().endswith(said.strip()):
        said = ""
    form = ReplyForm(
        dialect=dialect,
        tools=tools,
        is_thinking=dialect.reasoning is not None and dialect.reasoning.is_open(prompt, said=said),
        most_calls=None if chat.calls_in_parallel else 1,
    )
    forced = replace(form, dialect=dialect.forcible)
    match chat.tool_choice:
        case NamedTool(name):
            return replace(forced, grammar=_grammar(codec, forced, {name: tools[name]}, several=False))
        case ToolChoice.REQUIRED:
            return replace(forced, grammar=_grammar(codec, forced, tools, several=chat.calls_in_parallel))
    return form


def _grammar(codec: TextTokenizer, form: ReplyForm, tools: Mapping[str, Any], *, several: bool) -> str:
    def split(text: str) -> list[str | int]:
        pieces: list[str | int] = []
        for token in codec.encode(text, add_special_tokens=False):
            special = codec.special_text(token)
            if special and special in text:
                before, _, text = text.partition(special)
                pieces += [before, token] if before else [token]
        return [*pieces, text] if text else pieces

    try:
        return form.dialect.grammar(split, tools, several=several, is_thinking=form.is_thinking)
    except (TooManyRules, RecursionError):
        raise OptionRefused(
            "tools", "The schemas of the tools are too large to force a call; simplify them."
        ) from None
