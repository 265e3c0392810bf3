"""The marks of reasoning by model family. Pure."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarks:
    """Reasoning is from `begins` to `ends`; `silent` marks are no text. `signs` are texts of its templates."""

    begins: str
    ends: str
    signs: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        return (self.begins, self.ends, *self.silent)

    def is_of(self, template: str) -> bool:
        return any(sign in template for sign in (self.signs or (self.begins, self.ends)))

    def is_open(self, prompt: str, *, said: str = "") -> bool:
        """Return whether a prompt, or the part of the reply that it contains (`said`), ends within reasoning."""
        if said:
            return said.rfind(self.begins) > said.rfind(self.ends)
        return prompt.rstrip().endswith(self.begins.strip())


KNOWN: Final = (
    ReasoningMarks(begins="[THINK]", ends="[/THINK]"),
    ReasoningMarks(begins="<seed:think>", ends="</seed:think>"),
    ReasoningMarks(begins="<mm:think>", ends="</mm:think>"),
    ReasoningMarks(begins="<think:opensource>", ends="</think:opensource>", signs=(":opensource",)),
    ReasoningMarks(
        begins="<|START_THINKING|>",
        ends="<|END_THINKING|>",
        silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    ReasoningMarks(begins="<|channel>thought\n", ends="<channel|>", signs=("<|channel>thought", "<|channel>")),
    ReasoningMarks(
        begins="<|open|>think<|sep|>",
        ends="<|close|>think<|sep|>",
        signs=("<|open|>",),
        silent=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    ReasoningMarks(begins="Here are my reasoning steps:", ends="[BEGIN FINAL RESPONSE]"),
    ReasoningMarks(
        begins="<|think|>",
        ends="<|end|>",
        signs=("assistant<|think|>",),
        silent=("<|begin|>assistant<|content|>", "<|begin|>assistant"),
    ),
    ReasoningMarks(
        begins="<think>",
        ends="</think>",
        signs=("<think></think> tags", "<response></response>"),
        silent=("<response>", "</response>"),
    ),
    ReasoningMarks(begins="<think>", ends="</think>"),
)
"""The marks of known families; the first whose signs a template has counts."""


def reasoning_of(template: str) -> ReasoningMarks | None:
    return next((marks for marks in KNOWN if marks.is_of(template)), None)
