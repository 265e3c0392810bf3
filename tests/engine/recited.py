"""Two kinds of real tokenizers, and an engine that knows one text and continues it."""

from collections.abc import Sequence
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from cosine_engine.base import PREFIX, Choice, Row, RowResult
from cosine_engine.kv_pool import PagePool
from cosine_engine.other_tokens.text_alignment import PlainTokens, TextTokens
from cosine_engine.paged import PagedEngine
from cosine_engine.tree import SequenceTree

TEXT: Final = (
    "When the ferry finally left the harbour, the children counted gulls: one, two, three, and then too many. "
    "Their grandmother had packed bread and cheese, and a café owner (an old friend) had added 12 apricots. "
    "for index in range(len(rows)): total += rows[index]\n"
    "The ferry turned north. The children had stopped counting; the gulls had not stopped following them. "
    "你好，世界! Nobody counted the apricots, which were gone before the ferry had left the harbour behind. "
    "🐟 swam below.\n"
)
CERTAINTY: Final = 0.9


def byte_level(vocab_tokens: int) -> Tokenizer:
    """Byte-pair encoding learnt from `TEXT`; with 256 tokens, one for each byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_tokens, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


BYTES: Final = PlainTokens(byte_level(256))
PAIRS: Final = PlainTokens(byte_level(400))
VOCAB_TOKENS: Final = {BYTES: 256, PAIRS: 400}


class Reciter(PagedEngine):
    """An engine that, after the beginning of its text, continues the text.

    After anything else it writes a question mark; its certainty is always `CERTAINTY`.
    """

    def __init__(self, tokens: TextTokens, text: str, *, vocab_tokens: int) -> None:
        super().__init__(PagePool(tokens=4096), vocab_tokens=vocab_tokens, context_tokens=4096, numerics="recited")
        self.passes = 0
        self.fed_tokens = 0
        self._tokens = tokens
        self._text = text
        self._ids = list(tokens.encode(text))

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        self.passes += 1
        self.fed_tokens += sum(len(row.tokens) for row in rows)
        return [self._result(tree, row) for tree, row in zip(self.feed(rows), rows, strict=True)]

    def _result(self, tree: SequenceTree, row: Row) -> RowResult:
        said = [self._following(tree.tokens_to(name)) for name in row.nodes[row.scored_from :]]
        choices = tuple(Choice(token, 1.0, ((token, CERTAINTY),)[: row.candidates]) for token in said)
        return RowResult(choices, nll=1.5 if row.wants_nll else None)

    def _following(self, path: list[int]) -> int:
        if path == self._ids[: len(path)] and len(path) < len(self._ids):
            return self._ids[len(path)]
        said = self._tokens.decode(path)
        rest = self._text[len(said) :] if self._text.startswith(said) else ""
        return self._tokens.encode(rest or "?")[0]


def chain(
    sequence: int, tokens: Sequence[int], *, first: int = 0, parent: int = PREFIX, scored_from: int | None = None
) -> Row:
    """Return a row of consecutive tokens, named from `first` on, with one candidate after the last."""
    nodes = tuple(range(first, first + len(tokens)))
    scored = len(tokens) - 1 if scored_from is None else scored_from
    return Row(sequence, tuple(tokens), nodes, (parent, *nodes[:-1]), scored_from=scored, candidates=1)
