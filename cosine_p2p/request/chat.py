"""A chat as a prompt: its messages, and options of the target's chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, Final

Message = Mapping[str, Any]  # `{"role", "content"}`, and further keys for the template, such as `tool_calls`.
RESERVED: Final = frozenset({"add_generation_prompt", "continue_final_message", "messages", "template", "tools"})
"""Names that template options may not have."""


class ToolChoice(Enum):
    """The rule for tool calls in the answer: optional, none, or at least one."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The rule that the answer calls the function of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A prompt of messages, for the target's chat template.

    `tools` are functions as in OpenAI's API; `tool_choice` is the rule for calls. Without `calls_in_parallel` at
    most one is called. `documents` are objects with title and text, `template_options` further arguments of the
    template; `template` names one of several. With `continue_final_message` the answer continues the last message;
    None: if that is the assistant's. Without `add_generation_prompt` the text does not begin an answer.
    """

    messages: Sequence[Message]
    _: KW_ONLY
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: ToolChoice | NamedTool = ToolChoice.AUTO
    calls_in_parallel: bool = True
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool | None = None
    template: str | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)
