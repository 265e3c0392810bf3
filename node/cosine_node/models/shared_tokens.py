"""The token ids that a drafter shares with its target.

Tokens are compared by name, because embeddings are padded and tokenizers may have tokens without a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cosine_node.models.model_sizes import ModelSizes
from cosine_p2p.text.tokenizer import TextTokenizer, load_tokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles

Vocabulary = Mapping[str, int]


def shared_tokens(own: Vocabulary, target: Vocabulary) -> int | None:
    """The bound below which all ids in both vocabularies have equal names. None if some differ."""
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
    """True for the name of a row without a token by llama.cpp's converter."""
    return name == f"[PAD{token}]"


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """The ids that a drafter may draft: those below `count`. Other tokens than the target's are matched as text."""

    count: int
    are_the_targets: bool

    @classmethod
    def of(cls, folder: Path, target_folder: Path) -> "DraftedTokens":
        """The tokens of the drafter in a folder. Without a tokenizer they are the target's. Raises `UsageError`.

        A drafter without a row for each token of the target cannot read its texts.
        """
        files, own_files = TokenizerFiles.read(target_folder), TokenizerFiles.read(folder)
        assert files is not None, "a target without a tokenizer was refused"
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
    return 1 + max((token for name, token in vocabulary.items() if not is_padding(name, token)), default=-1)


def tokens_in(folder: Path) -> int:
    """One more than the highest id in both tokenizer and embedding of a model. Raises `UsageError`."""
    return min(token_count(load_tokenizer(folder).library.get_vocab()), ModelSizes.read(folder).vocab_tokens)
