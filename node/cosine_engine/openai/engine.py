"""A drafter without a model: a server continues the text, which is converted to the target's tokens."""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Tokenizer

from cosine_engine.base import Row, RowResult
from cosine_engine.openai.server import ServerEnding, TextServer, Writing
from cosine_engine.other_tokens.text_alignment import After, PlainTokens, plan_text
from cosine_engine.other_tokens.written import Continuation, WrittenEngine
from cosine_p2p.text.token_effects import REPLACEMENT

POOL_TOKENS: Final = 65_536
WAIT_S: Final = 0.5
"""Bounds a pass. Later text is drafted after the next commit."""
PLANNED_CHARACTERS: Final = 128
"""Bounds the time to find the tokens of what is written, which grows with the square of their number."""
UNSETTLED_CHARACTERS: Final = 16
"""Text without a place where words surely end is drafted from this length on, as in Chinese."""
USUAL_PROBABILITY: Final = 0.4
"""Of a token whose server tells none, before calibration."""
USUAL_NLL: Final = 3.0
"""The answer to how likely a prompt is, in nats per token, which servers do not tell."""


@dataclass(slots=True, kw_only=True)
class ServerText(Continuation):
    """The text that a server writes after another; `characters` of it are converted so far."""

    writing: Writing
    characters: int = 0


class ServerEngine(WrittenEngine[ServerText]):
    """Implements `cosine_engine.base.Engine` with one stream of text for each sequence.

    A stream is replaced by another once the last token of a row differs from it.
    """

    def __init__(self, server: TextServer, tokenizer: Tokenizer, **options: Any) -> None:
        """`tokenizer` is the target's; `options` are those of `PagedEngine`."""
        super().__init__(pool_tokens=POOL_TOKENS, numerics="none", **options)
        self.server = server
        # Servers read special tokens in prompts, and begin each with their own.
        self.target = PlainTokens(tokenizer, spells_special=True)
        self._lead = list(self.target.lead)

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Perform one pass, of at most `WAIT_S`. Raises `LocalProtocolError` or `OutOfPages` without feeding.

        A row that asks for its likelihood does not wait: clients choose drafters by the answer.
        """
        now_s = time.monotonic()
        with self.feeding(rows) as fed:
            texts = {row.sequence: tree.tokens_to(row.nodes[-1]) for tree, row in fed if row.is_scored}
            for sequence, tokens in texts.items():
                self._follow(sequence, tokens)
            for _, row in fed:
                known = self._continuations.get(row.sequence)
                if known is not None and known.tokens == texts.get(row.sequence):
                    self._extend(known, now_s + WAIT_S * (not row.wants_nll))
            nll = [USUAL_NLL if row.wants_nll and len(row.tokens) > 1 else None for row in rows]
            return [RowResult(self.choices(tree, row), one) for (tree, row), one in zip(fed, nll, strict=True)]

    def release(self, sequence: int) -> None:
        if (known := self._continuations.get(sequence)) is not None:
            known.writing.cut()
        super().release(sequence)

    def _follow(self, sequence: int, tokens: list[int]) -> None:
        """Let the server continue these tokens, unless it already does."""
        known = self._continuations.get(sequence)
        if known is not None and known.leads_to(tokens):
            return
        lead = len(self._lead) if tokens[: len(self._lead)] == self._lead else 0
        text = self.target.decode(tokens[lead:])
        if not text or text.endswith(REPLACEMENT):
            return
        if known is not None:
            writing = known.writing
            ending, written = writing.ending, writing.prompt + writing.text
            if len(text) >= len(writing.prompt) and written.startswith(text):
                # The same in other tokens.
                begun = len(text) - len(writing.prompt)
                self._continuations[sequence] = ServerText(tokens, writing=writing, characters=begun)
                return
            # The server may be slower than the text, which it would otherwise read again.
            is_behind = ending is None and text.startswith(written)
            if is_behind or writing.is_resting:
                return
            writing.cut()
        self._continuations[sequence] = ServerText(tokens, writing=Writing(self.server, text))

    def _extend(self, known: ServerText, until_s: float) -> None:
        """Add the tokens of what was written since, of a word more at least unless the time is over."""
        writing, begun = known.writing, known.characters
        while True:
            ending, written = writing.ending, len(writing.text)
            end = min(written, begun + PLANNED_CHARACTERS)
            text = writing.text[begun:end].partition(REPLACEMENT)[0]
            is_over = ending is ServerEnding.TEXT and end == written
            after = After.NOTHING if is_over else After.UNKNOWN if len(text) > UNSETTLED_CHARACTERS else After.MORE
            first, last = (bisect_left(writing.starts, (place, 0.0)) for place in (begun, end))
            starts = [(start - begun, one) for start, one in writing.starts[first:last]]
            plan, characters = plan_text(self.target, before=known.tokens, text=text, starts=starts, after=after)
            if characters:
                known.extend(plan if starts else tuple((token, USUAL_PROBABILITY) for token, _ in plan))
                known.characters += characters
                return
            if ending is ServerEnding.TEXT or writing.is_resting or time.monotonic() >= until_s:
                return
            if ending is not None:
                writing.go_on()
            writing.wait(written, until_s=until_s)
