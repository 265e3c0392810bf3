"""The pre-tokenizers of byte-level BPE: the names that GGUF files give them, and what they are in a tokenizer.json.

The names are those of llama.cpp's `tokenizer.ggml.pre`, the expressions those of the models' own tokenizers.
"""

from collections.abc import Mapping
from typing import Any, Final

JsonObject = dict[str, Any]
"""A part of a tokenizer.json."""

WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The expression of GPT-2."""
CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
"""The endings that the expressions of newer models split off in any case."""
AFTER_NUMBERS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""What those expressions have in common after numbers: punctuation, line ends, other white space."""


def _splits(*expressions: str) -> JsonObject:
    """Split by one expression after the other, then write every byte as a letter."""
    steps: list[JsonObject] = [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        for expression in expressions
    ]
    return {"type": "Sequence", "pretokenizers": [*steps, _byte_level(has_expression=False)]}


def _byte_level(*, has_expression: bool) -> JsonObject:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": has_expression}


_GPT2: Final = _byte_level(has_expression=True)
_SMOLLM: Final = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _GPT2]}

PRE_TOKENIZERS: Final[Mapping[str, JsonObject]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _SMOLLM),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx"),
        _splits(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + AFTER_NUMBERS),
    ),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2"),
        _splits(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + AFTER_NUMBERS),
    ),
    "default": _splits(r"[\p{P}\$\+<=>\^~\|]+", WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
"""By the name in the file; the first of several equal ones is the one to write."""


def name_of(pre_tokenizer: object) -> str | None:
    """The name of a pre-tokenizer as a tokenizer.json has it; None if it has no name here."""
    return next((name for name, known in PRE_TOKENIZERS.items() if known == pre_tokenizer), None)
