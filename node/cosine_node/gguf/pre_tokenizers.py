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
LLAMA3_WORDS: Final = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + AFTER_NUMBERS
"""The expression of Llama 3."""
QWEN2_WORDS: Final = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + AFTER_NUMBERS
"""The expression of Qwen 2."""


def _splits(*expressions: str) -> JsonObject:
    """Split by one expression after the other, then write every byte as a letter."""
    steps: list[JsonObject] = [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        for expression in expressions
    ]
    return {"type": "Sequence", "pretokenizers": [*steps, _byte_level(has_expression=False)]}


def _byte_level(*, has_expression: bool) -> JsonObject:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": has_expression}


_DIGITS: Final[JsonObject] = {"type": "Digits", "individual_digits": True}
_GPT2: Final = _byte_level(has_expression=True)
_SMOLLM: Final[JsonObject] = {"type": "Sequence", "pretokenizers": [_DIGITS, _GPT2]}
_LLAMA3: Final = _splits(LLAMA3_WORDS)
_QWEN2: Final = _splits(QWEN2_WORDS)

PRE_TOKENIZERS: Final[Mapping[str, JsonObject]] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "jais": _GPT2,
    "exaone4": _GPT2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "command-r": _SMOLLM,
    "codeshell": _SMOLLM,
    "exaone": _SMOLLM,
    "minerva-7b": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "dbrx": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "stablelm2": _QWEN2,
    "default": _splits(r"[\p{P}\$\+<=>\^~\|]+", WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
"""By the name in the file; the first of several equal ones is the one to write."""


def name_of(pre_tokenizer: object) -> str | None:
    """The name of a pre-tokenizer as a tokenizer.json has it; None if it has no name here."""
    return next((name for name, known in PRE_TOKENIZERS.items() if known == pre_tokenizer), None)
