"""Replies in channels, the format of gpt-oss: analysis, commentary with calls, final.

After the prompt's `<|start|>assistant` a message is a header, `<|message|>`, its text, and a token that ends it:
https://cookbook.openai.com/articles/openai-harmony.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from cosine_p2p.replies.calls import MAX_NAME, Calls
from cosine_p2p.replies.intake import Intake, Reading
from cosine_p2p.replies.parts import Content, Reasoning
from cosine_p2p.replies.rules import Rules

MESSAGE: Final = "<|message|>"
STARTS: Final = ("<|channel|>", "<|start|>", " to=", MESSAGE)
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
TOLD: Final = (*STARTS, *ENDS, "<|constrain|>")
_RECIPIENT: Final = re.compile(r"to=(?:functions\.)?([\w.\-]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")


def read_channels(intake: Intake, calls: Calls) -> Reading[None]:
    """Read all messages of a reply. Text without a header is content."""
    while (yield from intake.next_letter()):
        header = yield from intake.taken_of(STARTS)
        if header and header != MESSAGE:
            begin = intake.at
            rest, mark = yield from intake.until((MESSAGE,), most=MAX_NAME)
            if mark:
                intake.skip(len(mark))
                header += rest
            elif len(rest) <= MAX_NAME:
                # The reply ended within it.
                return
            else:
                intake.at = begin
                yield Content(header)
                header = ""
        yield from _read_message(intake, calls, header)


def _read_message(intake: Intake, calls: Calls, header: str) -> Reading[None]:
    recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
    kind: type[Content | Reasoning] | None = Content
    if recipient and calls.tools:
        kind = None
        yield calls.begin(recipient[1])
        yield from calls.read_arguments(intake)
    elif channel and channel[1] == "analysis":
        kind = Reasoning
    while True:
        text, mark = intake.before(ENDS)
        if text and kind is not None:
            yield kind(text)
        if mark and mark not in STARTS:
            intake.skip(len(mark))
        if mark or intake.is_over:
            return
        yield None


def channel_rule(rules: Rules, tools: Mapping[str, Any]) -> str:
    """Return a grammar expression for optional reasoning and a call, without the token that ends it."""
    calls = [
        f"{rules.mark(f'<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>')} "
        f"{rules.arguments(schema)}"
        for name, schema in tools.items()
    ]
    thought = f"{rules.mark('<|channel|>analysis<|message|>')} {rules.text_before('<|end|><|start|>assistant')}"
    return f"({thought})? {rules.one_of(calls)}"
