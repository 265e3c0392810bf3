"""The reader of a reply: from text with special tokens to parts as soon as they are certain. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from cosine_p2p.replies.calls import Calls
from cosine_p2p.replies.dialects import Dialect
from cosine_p2p.replies.harmony import TOLD as OF_CHANNELS
from cosine_p2p.replies.harmony import read_channels
from cosine_p2p.replies.intake import BLANK, Intake, Reading
from cosine_p2p.replies.parts import Content, Part, Reasoning
from cosine_p2p.replies.reasoning import ReasoningMarks

BARE: Final = ("{", "[", "```json")  # Marks only at the start of a reply, since other texts contain them too.


class ReplyReader:
    """Reads one reply in a dialect.

    `tools` are the schemas of arguments by function name; without any there are no calls. With `is_thinking` the
    prompt ends within reasoning. After `most_calls` the reply `is_full`. Reasoning, and content next to calls or
    reasoning, is stripped of white space.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        tools: Mapping[str, Any],
        call_id: Callable[[int], str],
        is_thinking: bool = False,
        most_calls: int | None = None,
    ) -> None:
        self._calls = Calls(tools, call_id)
        self._format = dialect.calls if tools else None
        self._reasoning = dialect.reasoning
        self._most_calls = most_calls
        told = [*(OF_CHANNELS if dialect.in_channels else ())]
        told += self._format.told if self._format else ()
        told += self._reasoning.told if self._reasoning else ()
        self._told = tuple(told)
        self._intake = Intake()
        reading = read_channels(self._intake, self._calls) if dialect.in_channels else self._read(is_thinking)
        self._reading: Iterator[Part | None] = iter(reading)
        self._trim = _Trim(holds=bool(self._format) or dialect.in_channels)
        self.is_thinking = is_thinking

    @property
    def is_full(self) -> bool:
        return self._most_calls is not None and self._calls.ended >= self._most_calls

    def add(self, text: str, *, is_special: bool = False) -> tuple[Part, ...]:
        """Return the parts that become certain with further text or a special token."""
        if is_special and not any(text in mark for mark in self._told):
            return ()
        self._intake.add(text)
        return tuple(self._parts())

    def finish(self) -> tuple[Part, ...]:
        self._intake.is_over = True
        return (*self._parts(), *self._trim.finish())

    def _parts(self) -> Iterator[Part]:
        while not self.is_full:
            part = next(self._reading, None)
            if part is None:
                return
            # Parts are final, so earlier text is not read again.
            self._intake.forget()
            if isinstance(part, Reasoning | Content):
                self.is_thinking = isinstance(part, Reasoning)
            yield from self._trim.add(part)

    def _read(self, is_thinking: bool) -> Reading[None]:
        intake, is_silent = self._intake, True
        if is_thinking and self._reasoning:
            # Some models repeat the mark.
            yield from intake.blank()
            yield from intake.takes(self._reasoning.begins)
            yield from self._read_reasoning(self._reasoning)
        while True:
            marks = self._marks(is_silent=is_silent)
            text, mark = intake.before(marks)
            if text:
                is_silent = is_silent and not text.strip(BLANK)
                yield Content(text)
            if not mark:
                if intake.is_over:
                    return
                yield None
            elif mark not in self._marks(is_silent=is_silent):
                # This mark counts only at the start of a reply.
                continue
            elif self._reasoning and mark == self._reasoning.begins:
                intake.skip(len(mark))
                yield from self._read_reasoning(self._reasoning)
            elif self._reasoning and mark in self._reasoning.silent:
                intake.skip(len(mark))
            else:
                assert self._format is not None
                begin, is_silent = intake.at, False
                if not (yield from self._format.read(intake, self._calls)):
                    intake.at = begin + len(mark)
                    yield Content(mark)

    def _marks(self, *, is_silent: bool) -> list[str]:
        marks = list(self._format.marks) if self._format else []
        if not is_silent:
            marks = [mark for mark in marks if mark not in BARE]
        if self._reasoning:
            marks += [*self._reasoning.silent, *([self._reasoning.begins] if is_silent else [])]
        return marks

    def _read_reasoning(self, marks: ReasoningMarks) -> Reading[None]:
        self.is_thinking = True
        while True:
            text, mark = self._intake.before((marks.ends,))
            if text:
                yield Reasoning(text)
            if mark:
                self._intake.skip(len(mark))
                self.is_thinking = False
                return
            if self._intake.is_over:
                return
            yield None


class _Trim:
    """Strips white space around reasoning and content; after content only with `holds`: a call may follow."""

    def __init__(self, *, holds: bool) -> None:
        self._holds = holds
        self._kind: type[Part] | None = None
        self._is_begun = False
        self._is_alone = True
        self._space: list[str] = []

    def add(self, part: Part) -> Iterator[Part]:
        if type(part) is not self._kind:
            self._kind, self._is_begun, self._space = type(part), False, []
        if not isinstance(part, Content):
            self._is_alone = False
        if not isinstance(part, Content | Reasoning):
            yield part
            return
        text = part.text
        if not self._is_begun and not self._is_alone:
            text = text.lstrip(BLANK)
        is_held = self._holds or isinstance(part, Reasoning)
        body = text.rstrip(BLANK) if is_held or not (self._is_begun or text.strip(BLANK)) else text
        if body:
            self._is_begun = True
            yield type(part)("".join([*self._space, body]))
            self._space = []
        self._space += [text[len(body) :]]

    def finish(self) -> Iterator[Part]:
        if self._is_alone and any(self._space):
            yield Content("".join(self._space))
