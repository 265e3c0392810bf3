"""The vocabulary of a GGUF file: its tokens, and those that begin and end texts, by llama.cpp's rules.

https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeGuard

from cosine_p2p.gguf.pre_tokenizers import DEFAULT, PRE_TOKENIZERS, PreTokenizer
from cosine_protocol.errors import UsageError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # ggml's types of tokens.
APART: Final = (UNKNOWN, CONTROL, USER_DEFINED)
"""The types of tokens that are matched in a text before all others."""
BYTE_PAIRS: Final = ("gpt2", "gemma4")  # The kinds of tokenizers with merges.
PIECES: Final = "llama"  # The kind of SentencePiece, with scores.
DEFAULT_IDS: Final[Mapping[str, Mapping[str, int]]] = {
    "gpt2": {"bos": 11, "eos": 11},
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
}
"""llama.cpp's default special tokens by the kind of tokenizer."""
WITHOUT_BOS: Final = ("glm4", "glm5", "chatglm-bpe")  # Models without a default BOS token.
END_KEYS: Final = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
"""The keys of tokens that end a text: of a sequence, a turn, a message, a file of code."""
END_TEXTS: Final = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
    "<|ifm|im_end|>",
)  # fmt: skip
"""The tokens that end a text regardless of keys, by their text."""
CODE_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
        "<|prefix|>", "<|plamo:fim_prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
        "<|suffix|>", "<|plamo:fim_suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
        "<|middle|>", "<|plamo:fim_middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>", "<|plamo:file_separator|>"),
}  # fmt: skip
"""The tokens around gaps in code without a key, by their text."""
SHOWN_TEXTS: Final = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # Visible control tokens.


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokenizer of a file. All lists are by token id; the types of tokens are llama.cpp's."""

    source: str  # The name of the file in errors.
    kind: str
    tokens: Sequence[str] = field(repr=False)
    kinds: Sequence[int] = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    ids: Mapping[str, int] = field(repr=False)  # By the text, which must be unique.
    ends: tuple[int, ...]  # The tokens that end a text, those with keys first, in the order of `END_KEYS`.

    @classmethod
    def read(cls, source: str, metadata: Mapping[str, Any]) -> "Vocabulary | None":
        """Read the vocabulary; None if tokens have no texts. Raises `UsageError` if unsupported or damaged."""
        kind = metadata.get("tokenizer.ggml.model")
        if kind in (None, "none", "no_vocab"):
            return None
        if kind not in (*BYTE_PAIRS, PIECES):
            raise UsageError(
                f"{source} has a tokenizer of the kind {kind!r}, which cannot be read; "
                f"{', '.join((*BYTE_PAIRS, PIECES))} can be."
            )
        bare = cls(source, kind, (), (), metadata, {}, ())
        tokens = [text or f"[EMPTY_{token}]" for token, text in enumerate(bare.list_of("tokens", str))]
        # Without types all tokens are normal.
        has_kinds = bare.get("token_type") is not None
        kinds = bare.list_of("token_type", int, len(tokens)) if has_kinds else [NORMAL] * len(tokens)
        ids = {text: token for token, text in enumerate(tokens)}
        if len(ids) < len(tokens):
            twice = next(text for token, text in enumerate(tokens) if ids[text] != token)
            raise UsageError(
                f"{source} has the token {twice[:99]!r} twice in tokenizer.ggml.tokens; fetch it again."
            )
        named = replace(bare, tokens=tokens, kinds=kinds, ids=ids)
        return replace(named, ends=tuple(named._ends()), kinds=named._kinds())

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def list_of(self, key: str, kind: type, length: int | None = None) -> list[Any]:
        """Return a list of the metadata. Raises `UsageError` if it is not one."""
        found = self.get(key)
        is_list = isinstance(found, list) and all(isinstance(item, kind) for item in found)
        if is_list and length in (None, len(found)):
            return list(found)
        raise UsageError(f"{self.source} has no list of its {key}; fetch it again.")

    def special(self, name: str) -> int | None:
        """Return the id of a special token, by the name in its key such as `bos`."""
        default = None
        if not (name == "bos" and self.get("pre") in WITHOUT_BOS):
            default = DEFAULT_IDS.get(self.kind, {}).get(name)
        return next((token for token in (self.get(f"{name}_token_id"), default) if self._is_token(token)), None)

    def text_of(self, name: str) -> str | None:
        token = self.special(name)
        return None if token is None else self.tokens[token]

    def is_apart(self, token: int | None) -> TypeGuard[int]:
        """Return whether the token exists and its text always represents it."""
        return token is not None and self.kinds[token] in APART

    @property
    def pre_tokenizer(self) -> PreTokenizer:
        """The pre-tokenizer of byte pairs. Raises `UsageError` for an unknown name."""
        if self.pre_tokenizer_name not in PRE_TOKENIZERS:
            raise UsageError(
                f"{self.source} splits texts in the way {self.pre_tokenizer_name!r}, which is not known here; "
                f"those known are {', '.join(PRE_TOKENIZERS)}."
            )
        return PRE_TOKENIZERS[self.pre_tokenizer_name]

    @property
    def pre_tokenizer_name(self) -> str:
        return "gemma4" if self.kind == "gemma4" else str(self.get("pre") or "default")

    @property
    def begins_texts(self) -> bool:
        if self.special("bos") is None:
            return False
        if self.kind == PIECES:
            return bool(self.get("add_bos_token", True))
        # For an unknown name llama.cpp's default is unknown too.
        named = PRE_TOKENIZERS.get(self.pre_tokenizer_name, DEFAULT)
        # Pre-tokenizers with pieces that begin texts ignore the file.
        is_forced = named.begins_texts and named.has_pieces
        return is_forced or bool(self.get("add_bos_token", named.begins_texts))

    @property
    def ends_texts(self) -> bool:
        return self.special("eos") is not None and bool(self.get("add_eos_token", False))

    def _is_token(self, token: object) -> bool:
        return isinstance(token, int) and 0 <= token < len(self.tokens)

    def _code_token(self, name: str) -> int | None:
        named = self.special(name)
        if named is not None:
            return named
        return next((self.ids[text] for text in CODE_TEXTS[name] if text in self.ids), None)

    def _ends(self) -> Iterator[int]:
        keys = [self._code_token(key) if key in CODE_TEXTS else self.special(key) for key in END_KEYS]
        texts = [self.ids[text] for text in END_TEXTS if text in self.ids]
        found = list(dict.fromkeys(token for token in [*keys, *texts] if token is not None))
        left_out = {self.ids[text] for text in self._no_ends({self.tokens[token] for token in found})}
        return (token for token in found if token not in left_out)

    @staticmethod
    def _no_ends(found: set[str]) -> Iterator[str]:
        """Yield tokens that do not end a text if certain others exist: of gpt-oss and Solar Open, of Gemma 4."""
        calls = bool(found & {"<|call|>", "<|calls|>"})
        if "<|end|>" in found and calls and found & {"<|return|>", "<|flush|>"}:
            yield "<|end|>"
        if {"<|tool_response>", "</s>"} <= found:
            yield "</s>"

    def _kinds(self) -> list[int]:
        kinds = list(self.kinds)
        texts = [text for text in END_TEXTS if text in self.ids]
        code = [self._code_token(name) for name in CODE_TEXTS if self.special(name) is None]
        for token in [*(self.ids[text] for text in texts), *code]:
            if token is not None:
                kinds[token] = CONTROL
        for text in SHOWN_TEXTS:
            if text in self.ids:
                kinds[self.ids[text]] = USER_DEFINED
        for text in self._no_ends(set(texts)):
            kinds[self.ids[text]] = USER_DEFINED if text == "<|end|>" else NORMAL
        return kinds


def named_ends(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tokens that end a text by keys, for tokens without texts."""
    found = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in END_KEYS)
    return tuple(dict.fromkeys(token for token in found if isinstance(token, int) and token >= 0))
