"""Which ids mean the same to a drafter as to its target: tokens are compared, not rows of embeddings.

Embeddings are padded to whole multiples, and others of a family to other ones, so that a model may have more rows
than its tokenizer has tokens; a tokenizer may also have tokens that came after the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cosine_node.models.model_sizes import ModelSizes
from cosine_p2p.text.tokenizer import TextTokenizer, load_tokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles

Vocabulary = Mapping[str, int]
"""The names of tokens, and their ids."""


def shared_tokens(own: Vocabulary, target: Vocabulary) -> int | None:
    """The ids below which both mean the same, by all ids that both know; None where some mean another token."""
    names = {token: name for name, token in target.items()}
    shared = 0
    for name, token in own.items():
        other = names.get(token)
        if other is None or is_padding(name, token) or is_padding(other, token):
            continue
        if other != name:
            return None
        shared = max(shared, token + 1)
    return shared or None


def is_padding(name: str, token: int) -> bool:
    """True for the name that llama.cpp's converter gives a row without a token."""
    return name == f"[PAD{token}]"


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """The ids that a drafter may draft: those below `count`. Where they are not the target's, text is matched."""

    count: int
    are_the_targets: bool

    @classmethod
    def of(cls, folder: Path, target_folder: Path) -> "DraftedTokens":
        """Those of the drafter in a folder. One without a tokenizer is of the target's tokens.

        One that has no row for a token of the target's could not read its texts. Raises `UsageError`.
        """
        files, own_files = TokenizerFiles.read(target_folder), TokenizerFiles.read(folder)
        assert files is not None, "a target without a tokenizer is refused before"
        target = TextTokenizer(files.files).library.get_vocab()
        target_rows = ModelSizes.read(target_folder).vocab_tokens
        target_tokens = min(target_rows, token_count(target))
        if own_files is None:
            return cls(target_tokens, are_the_targets=True)
        own = target if own_files.digest == files.digest else TextTokenizer(own_files.files).library.get_vocab()
        shared = shared_tokens(own, target)
        if shared is None or ModelSizes.read(folder).vocab_tokens < target_tokens:
            return cls(token_count(own), are_the_targets=False)
        return cls(min(shared, target_rows), are_the_targets=True)


def token_count(vocabulary: Vocabulary) -> int:
    """One more than the highest id that has a token."""
    return 1 + max((token for name, token in vocabulary.items() if not is_padding(name, token)), default=-1)


def tokens_in(folder: Path) -> int:
    """One more than the highest token that a model's tokenizer and its embedding both have. Raises `UsageError`."""
    return min(token_count(load_tokenizer(folder).library.get_vocab()), ModelSizes.read(folder).vocab_tokens)
