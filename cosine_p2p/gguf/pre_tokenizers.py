"""The pre-tokenizers of BPE by name, as llama.cpp implements them.

The names are those of llama.cpp's `tokenizer.ggml.pre`, the expressions those of the models' tokenizers as
llama.cpp reads them: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp. For example, it
distinguishes case only for A to Z.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

JsonObject = dict[str, Any]  # A part of a tokenizer.json.


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The rules that split a text into words: each match of an expression is a word; expressions apply in order."""

    expressions: tuple[str, ...]
    takes_whole_words: bool = False  # A word that is a token is not merged.
    begins_texts: bool = False  # By default a text begins with the BOS token.
    has_pieces: bool = False  # Tokens are those of SentencePiece: ▁ is a space, each byte has a token.


CONTRACTIONS: Final = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
"""The endings that newer models' expressions split off, in any case of A to Z."""
WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The expression of GPT-2."""
SPACES: Final = r"|\s*[\r\n]+|\s+(?!\S)|\s+"  # The end of most: line ends with preceding white space, other space.
SIGNS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
SIGNS_WITH_SLASHES: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES
_LETTERS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_ENDED: Final = f"(?:{CONTRACTIONS})|{_LETTERS}"
ONE_DIGIT: Final = rf"{_ENDED}|\p{{N}}{SIGNS}"  # The expression of Qwen 2.
THREE_DIGITS: Final = rf"{_ENDED}|\p{{N}}{{1,3}}{SIGNS}"  # The expression of Llama 3.
MARKED: Final = (
    rf"(?:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    + SPACES
)
"""The expression of Qwen 3.5: combining marks belong to words."""


def _cased(letters: str, ending: str) -> str:
    """Return an expression for words that are split at a capital letter of A to Z, with an ending."""
    lead, upper, lower = r"[^\r\n\p{L}\p{N}]?", f"[{letters}&&[^a-z]]", f"[{letters}&&[^A-Z]]"
    return f"{lead}{upper}*{lower}+{ending}|{lead}{upper}+{lower}*{ending}"


CASED: Final = _cased(r"\p{L}", "") + r"|\p{N}" + SIGNS_WITH_SLASHES  # The expression of Mistral's Tekken.
CASED_THREE_DIGITS: Final = _cased(r"\p{L}", f"(?:{CONTRACTIONS})?") + r"|\p{N}{1,3}" + SIGNS_WITH_SLASHES
"""The expression of GPT-4o."""
_MARKED_WORDS: Final = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+(?:{CONTRACTIONS})?"
_WORDS_AFTER_SIGNS: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
DEEPSEEK: Final = _WORDS_AFTER_SIGNS + r"[\r\n]*" + SPACES  # DeepSeek 3, numbers and East Asian words split off.
_CJK: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_CJK: Final = "[[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]&&[^\\s]]+"
_DEEPSEEK_LETTERS: Final = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_HAN: Final = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ebef\uf900-\ufaff\U0002f800-\U0002fa1f"
)
_ONE_NUMBER: Final = r"\p{N}"
_NUMBERS: Final = r"\p{N}+"
_NUMBERS_OF_THREE: Final = r"\p{N}{1,3}"
_NUMBERS_FROM_THE_END: Final = r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
"""Groups of three numbers, counted from the end; the first includes preceding text."""
_WITHOUT_PUNCTUATION: Final = r" ?[^(\s|.,!?…。，、।۔،)]+"
_LINES: Final = r"[^\n]+|[\n]+"

_GPT2: Final = PreTokenizer((WORDS,))
_LLAMA3: Final = PreTokenizer((THREE_DIGITS,), takes_whole_words=True, begins_texts=True)
_QWEN2: Final = PreTokenizer((ONE_DIGIT,))
_GPT4O: Final = PreTokenizer((CASED_THREE_DIGITS,))
_DEEPSEEK3: Final = PreTokenizer((_NUMBERS_OF_THREE, _CJK, DEEPSEEK))
_GEMMA4: Final = PreTokenizer((_LINES,), begins_texts=True, has_pieces=True)
DEFAULT: Final = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", WORDS, _NUMBERS, r"[0-9][0-9][0-9]"))
"""The default of files without a name."""

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    "default": DEFAULT,
    **dict.fromkeys((
        "gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "jina-es", "jina-de", "gigachat", "jina-v2-es",
        "jina-v2-de", "a.x-4.0", "mellum", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "trillion",
        "granite-docling",
    ), _GPT2),
    **dict.fromkeys((
        "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2",
    ), PreTokenizer((_ONE_NUMBER, WORDS))),
    **dict.fromkeys((
        "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
    ), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "glm5", "chatglm-bpe"), PreTokenizer((THREE_DIGITS,))),
    **dict.fromkeys((
        "qwen2", "deepseek-r1-qwen", "stablelm2", "kormo", "f2llmv2", "megrez", "hunyuan", "solar-open", "grok-2",
    ), _QWEN2),
    "qwen35": PreTokenizer((MARKED,)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    "granite-embed-multi-97m": PreTokenizer(
        (_cased(r"\p{L}\p{M}", f"(?:{CONTRACTIONS})?") + r"|\p{N}{1,3}" + SIGNS_WITH_SLASHES,),
        takes_whole_words=True,
    ),
    "tekken": PreTokenizer((CASED,), takes_whole_words=True, begins_texts=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), PreTokenizer((
        _NUMBERS_FROM_THE_END,
        _MARKED_WORDS + r"|\p{N}{1,3}" + SIGNS_WITH_SLASHES,
    ))),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "spark2_5": PreTokenizer(
        (_NUMBERS_OF_THREE, _CJK, _WORDS_AFTER_SIGNS + r"|[\r\n]|\s+(?!\S)|\s+", _ONE_NUMBER)
    ),
    "deepseek-llm": PreTokenizer((
        r"[\r\n]",
        rf"\s?[{_DEEPSEEK_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+",
        r"\s+\z",
        _DEEPSEEK_CJK,
        _NUMBERS,
    )),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, _ONE_NUMBER)),
    "youtu": PreTokenizer(
        (
            "[\uac00-\ud7a3\u3131-\u318e]+|"
            "[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|"
            "[\u3105-\u312f]+|" + _CJK,
            _MARKED_WORDS + r"|\p{N}" + SIGNS_WITH_SLASHES,
        ),
        takes_whole_words=True,
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", WORDS, r"[0-9][0-9][0-9]")),
    "jais-2": PreTokenizer((
        rf"{_ENDED}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
        + "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
        + r"|\s",
    )),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), PreTokenizer((_WITHOUT_PUNCTUATION,))),
    "viking": PreTokenizer((_WITHOUT_PUNCTUATION, _ONE_NUMBER)),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", _ONE_NUMBER, r"[\p{P}!-/:-@\[-`{-~]",
            WORDS,
        ),
        begins_texts=True,
    ),
    "kimi-k2": PreTokenizer((
        rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+(?:{CONTRACTIONS})?|\p{{N}}{{1,3}}{SIGNS}",
    )),
    "superbpe": PreTokenizer((_NUMBERS, r"(?=(?:[0-9]{3})+(?![0-9]))")),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer((
        rf"{_ENDED}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ))),
    "seed-coder": PreTokenizer((rf"{_ENDED}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{SPACES}",)),
    "ufakzeka": PreTokenizer((rf"{_LETTERS}|\p{{N}}{SIGNS}",)),
    "afmoe": PreTokenizer((
        _NUMBERS_FROM_THE_END,
        "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
        "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
        DEEPSEEK,
    )),
    "laguna": PreTokenizer((_LINES, ONE_DIGIT)),
    "exaone-moe": PreTokenizer((
        rf"(?:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )),
    "minicpm5": PreTokenizer(
        (_NUMBERS_OF_THREE, rf"{_ENDED}|\p{{N}}+{SIGNS}"), takes_whole_words=True
    ),
    "k2-horizon": PreTokenizer((
        rf"(?:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}\u200c\u200d]+|\p{{N}}{{1,3}}{SIGNS}",
    )),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), _GEMMA4),
    "sarvam-moe": PreTokenizer((_LINES,), has_pieces=True),
}  # fmt: skip
"""By the name in the file."""
