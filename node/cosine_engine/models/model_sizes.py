"""Vocabulary size and context length of a model, and the token ids that a drafter shares with its target.

Tokens are compared by name, because embeddings are padded and tokenizers may have tokens without a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cosine_engine import context_length
from cosine_engine.vocabulary import ALL_TOKENS, DraftVocabulary, KnownTokens
from cosine_p2p.request.model_config import TEXT_PARTS, read_model_config, text_part
from cosine_p2p.text.tokenizer import TextTokenizer, load_tokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a model. `vocab_tokens` is the number of rows of its embedding, not of its tokenizer's tokens."""

    vocab_tokens: int
    context_tokens: int

    @classmethod
    def read(cls, folder: Path) -> "ModelSizes":
        """The sizes of the language model in a folder. Raises `UsageError`.

        For an incomplete configuration they include the defaults of transformers, if that knows the model.
        """
        # Bounded, unlike the reading by transformers.
        whole = read_model_config(folder)
        config = text_part(whole)
        if not is_written_out(whole) and all(find_spec(name) is not None for name in ("torch", "transformers")):
            known = _of_known_kind(folder)
            if known is not None:
                return known
        vocab_tokens = config.get("vocab_size")
        if not isinstance(vocab_tokens, int) or vocab_tokens < 1:
            raise UsageError(f"{folder} is not a target to draft for: its config.json has no vocab_size.")
        return cls(vocab_tokens, context_length.context_tokens(config))


def is_written_out(config: Mapping[str, Any]) -> bool:
    """True if no defaults of transformers change the sizes, as for most configurations that transformers 5 writes.

    This saves the import of transformers and PyTorch: five seconds and 300 MB.
    """
    has_lengths = all(isinstance(config.get(name), int) for name in ("vocab_size", "max_position_embeddings"))
    has_rope = isinstance(config.get("rope_parameters"), dict)
    return has_lengths and has_rope and config.keys().isdisjoint(TEXT_PARTS)


def _of_known_kind(folder: Path) -> ModelSizes | None:
    """The sizes of a model that transformers knows. None for others."""
    from cosine_engine.forward.support import context_tokens
    from cosine_engine.torch.loading import read_config

    try:
        config = read_config(str(folder))
        vocab_tokens = config.get_text_config().vocab_size
    except (UsageError, AttributeError, ValueError):
        return None
    return ModelSizes(vocab_tokens, context_tokens(config)) if isinstance(vocab_tokens, int) else None


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
    """The tokens that a model drafts. Other tokens than the target's are matched as text. Default: the target's."""

    known: KnownTokens = ALL_TOKENS
    are_the_targets: bool = True

    @classmethod
    def of(cls, folder: Path, target_folder: Path) -> "DraftedTokens":
        """The tokens of the drafter in a folder. Without a tokenizer they are the target's. Raises `UsageError`.

        A drafter without a row for each token of the target cannot read its texts, unless it has a vocabulary.
        """
        if folder == target_folder:
            return cls()
        target_rows = ModelSizes.read(target_folder).vocab_tokens
        vocabulary = DraftVocabulary.read(folder)
        if vocabulary is not None:
            return cls(KnownTokens(vocabulary=vocabulary, target_tokens=target_rows))
        files, own_files = TokenizerFiles.read(target_folder), TokenizerFiles.read(folder)
        assert files is not None, "a target without a tokenizer was refused"
        target = TextTokenizer(files.files).library.get_vocab()
        target_tokens = min(target_rows, token_count(target))
        if own_files is None:
            return cls(KnownTokens(count=target_tokens))
        own = target if own_files.digest == files.digest else TextTokenizer(own_files.files).library.get_vocab()
        shared = shared_tokens(own, target)
        if shared is None or ModelSizes.read(folder).vocab_tokens < target_tokens:
            return cls(KnownTokens(count=token_count(own)), are_the_targets=False)
        return cls(KnownTokens(count=min(shared, target_rows)))


def token_count(vocabulary: Vocabulary) -> int:
    return 1 + max((token for name, token in vocabulary.items() if not is_padding(name, token)), default=-1)


def tokens_in(folder: Path) -> int:
    """One more than the highest id in both tokenizer and embedding of a model. Raises `UsageError`."""
    return min(token_count(load_tokenizer(folder).library.get_vocab()), ModelSizes.read(folder).vocab_tokens)
