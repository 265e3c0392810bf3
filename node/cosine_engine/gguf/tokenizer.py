"""The tokenizer of a served GGUF file, tested against llama.cpp if that is installed."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from platformdirs import user_cache_dir
from tokenizers import Tokenizer

from cosine_engine.gguf.file import GgufFile
from cosine_engine.processes.answer import ask_llama
from cosine_p2p.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from cosine_p2p.gguf.tokenizer import files_of, word_steps
from cosine_p2p.gguf.vocabulary import BYTE_PAIRS, Vocabulary
from cosine_p2p.storage.state_file import replace_text
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)

LLAMA_PACKAGE: Final = "xllamacpp"
LLAMA_TIMEOUT_S: Final = 30.0
"""llama.cpp takes two seconds for 262,144 tokens with 514,906 merges."""
WAYS_TIMEOUT_S: Final = 30.0
"""For the comparison of all pre-tokenizers, each of which takes a tenth of a second."""
NO_TOKENS: Final = {"type": "BPE", "vocab": {}, "merges": []}
MAX_SHOWN: Final = 40

Tokens = Sequence[Sequence[int]]
LlamaTokens = Callable[[Path, Sequence[str]], Tokens]
"""Tokenizes texts with llama.cpp and the vocabulary of a file. Raises `UsageError`."""


def stated_files(model: GgufFile) -> dict[str, bytes]:
    """The tokenizer files of a GGUF file, by name (`cosine_p2p.gguf.tokenizer`)."""
    vocabulary = Vocabulary.read(str(model.path), model.metadata)
    return {} if vocabulary is None else files_of(vocabulary)


def tokenizer_files(model: GgufFile, *, cache_folder: Path | None = None) -> dict[str, bytes]:
    """The same, after a comparison with llama.cpp, if installed, on a few hundred texts.

    Results are cached. Raises `UsageError` for a tokenizer with other tokens, or with an unknown pre-tokenizer.
    """
    vocabulary = Vocabulary.read(str(model.path), model.metadata)
    if vocabulary is None:
        return {}
    try:
        build = version(LLAMA_PACKAGE)
    except PackageNotFoundError:
        return files_of(vocabulary)
    keys = {key: value for key, value in model.metadata.items() if key.startswith(("tokenizer.", "general.name"))}
    ours = sorted(files_of(vocabulary).items()) if _is_known(vocabulary) else list(PRE_TOKENIZERS)
    about = json.dumps([build, trial_texts([]), sorted(keys.items()), ours], default=repr)
    folder = cache_folder or Path(user_cache_dir("cosine-p2p")) / "tokenizer-trials"
    mark = folder / hashlib.sha256(about.encode()).hexdigest()
    try:
        vocabulary = named(vocabulary, mark.read_text("utf-8"))
    except OSError:
        vocabulary = tried(vocabulary, model.parts[0], llama_tokens)
        try:
            replace_text(mark, vocabulary.pre_tokenizer_name)
        except OSError as error:
            LOG.warning("%s: the tokenizer of %s will be tested again", error, model.path)
    return files_of(vocabulary)


def tried(
    vocabulary: Vocabulary, file: Path, asked: LlamaTokens, *, clock: Callable[[], float] = time.monotonic
) -> Vocabulary:
    """Test a vocabulary against llama.cpp. An unknown pre-tokenizer is replaced by an equivalent known one.

    If llama.cpp fails, it is returned unchanged. Raises `UsageError` as `tokenizer_files`.
    """
    texts = trial_texts([text for token, text in enumerate(vocabulary.tokens) if vocabulary.is_apart(token)])
    try:
        expected = asked(file, texts)
    except UsageError as error:
        if not _is_known(vocabulary):
            # Raises an error that lists the known ones.
            _ = vocabulary.pre_tokenizer
        LOG.info("the tokenizer of %s was not tested: %s", vocabulary.source, error)
        return vocabulary
    if not _is_known(vocabulary):
        return _with_known_way(vocabulary, texts, expected, clock)
    tokenizer = Tokenizer.from_buffer(files_of(vocabulary)["tokenizer.json"])
    for text, tokens in zip(texts, expected, strict=True):
        if tokenizer.encode(text).ids != list(tokens):
            raise UsageError(
                f"{vocabulary.source} cannot be served: llama.cpp has other tokens for {text[:MAX_SHOWN]!r} than "
                "this program."
            )
    return vocabulary


def named(vocabulary: Vocabulary, name: str) -> Vocabulary:
    """The same tokens with another pre-tokenizer."""
    return replace(vocabulary, metadata={**vocabulary.metadata, "tokenizer.ggml.pre": name})


def _is_known(vocabulary: Vocabulary) -> bool:
    return vocabulary.kind not in BYTE_PAIRS or vocabulary.pre_tokenizer_name in PRE_TOKENIZERS


def _with_known_way(
    vocabulary: Vocabulary, texts: Sequence[str], expected: Tokens, clock: Callable[[], float]
) -> Vocabulary:
    """The vocabulary with the first known pre-tokenizer that gives the expected tokens."""
    until_s = clock() + WAYS_TIMEOUT_S
    tokenizer = Tokenizer.from_buffer(files_of(named(vocabulary, "default"))["tokenizer.json"])
    seen: set[PreTokenizer] = set()
    for known, way in PRE_TOKENIZERS.items():
        if way.has_pieces or way in seen:
            continue
        if clock() > until_s:
            break
        seen.add(way)
        candidate = named(vocabulary, known)
        # Replace only the pre-tokenizer, because building a tokenizer takes seconds.
        steps = {"version": "1.0", "added_tokens": [], "pre_tokenizer": word_steps(way), "model": NO_TOKENS}
        tokenizer.pre_tokenizer = Tokenizer.from_str(json.dumps(steps)).pre_tokenizer
        model = tokenizer.model
        model.ignore_merges = way.takes_whole_words
        tokenizer.model = model
        first = [candidate.special("bos")] * candidate.begins_texts
        last = [candidate.special("eos")] * candidate.ends_texts
        if all(
            [*first, *tokenizer.encode(text, add_special_tokens=False).ids, *last] == list(tokens)
            for text, tokens in zip(texts, expected, strict=True)
        ):
            LOG.warning(
                "%s has the unknown pre-tokenizer %r; on %d texts it equals %r",
                *(vocabulary.source, vocabulary.pre_tokenizer_name, len(texts), known),
            )
            return candidate
    raise UsageError(
        f"{vocabulary.source} has the unknown pre-tokenizer {vocabulary.pre_tokenizer_name!r}; a newer version of "
        "this program may know it."
    )


def llama_tokens(file: Path, texts: Sequence[str]) -> Tokens:
    """Run the installed llama.cpp in a child process."""
    tokens: Tokens = ask_llama("tokens", file, list(texts), timeout_s=LLAMA_TIMEOUT_S)
    return tokens


WORDS: Final = (
    "Hello", "world", "THE", "camelCase", "XMLHttpRequest", "snake_case", "naïve", "Ünïcödé", "ÉCOLE",
    "Straße", "ǅungla", "fiancée", "e\u0301te\u0301", "Ελληνικά", "Привет", "мир", "עברית", "العربيّة",
    "हिन्दी", "नमस्ते", "தமிழ்", "ไทย", "ภาษา", "ქართული", "Հայերեն", "日本語", "こんにちは",
    "カタカナ", "ﾊﾝｶｸ", "中文", "漢字仮名", "한국어", "ㄱㄴ", "ㄅㄆ", "አማርኛ", "Ｆｕｌｌ", "𠀀𠀁", "𐐀𐐨",
    "ª", "ʰ",
)  # fmt: skip
"""Words with capitals and marks, in scripts without capitals or spaces, and beyond the first plane."""
NUMBERS: Final = (
    "0", "7", "12", "123", "1234", "12345", "123456", "1234567890", "3.14", "1,000", "٣٤", "１２３",
    "Ⅷ", "½²",
)  # fmt: skip
SPACES: Final = (
    " ", "  ", "   ", "    ", "     ", "         ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r",
    " \n", "\n  ", "\n\t", "\u00a0", "\u3000", "\u2003", "\v", "\f",
)  # fmt: skip
SIGNS: Final = (
    "'s", "'S", "'re", "'LL", "n't", "'", "don't", "I'VE", ".", "...", ",", "!", "?!", ";", ":", "-",
    "--", "—", "…", "_", "/", "//", "/*", "\\", "(", ")", "()", "[", "]", "{", "}", "<", ">", "==",
    "!=", "->", "+=", "*", "**", "&", "&&", "#", "@", "$", "€", "%", "^", "~", "`", "```", "|", '"',
    "“", "”", "‘", "’", "«", "»", "。", "、", "，", "！", "·", "।", "،", "🙂", "👩‍👧", "🇩🇪", "❤️",
    "\u200b", "\u200d", "\u00ad", "<0x41>", "\ufffd",
)  # fmt: skip
LINES: Final = (
    "", "def add(a, b):\n    return a + b  # sum\n",
    "for (int i = 0; i < 10; ++i) {\n\tx[i] *= 2;\n}\n\n", "SELECT * FROM users WHERE id=42;",
    "https://example.org/a/b?c=d&e=%20#f", "user.name@example.org", "<div class=\"x\">&nbsp;</div>",
    "{\"key\": [1, 2.5e-3, null, true]}", "| a | b |\n|---|---|\n| 1 | 2 |",
    "- one\n- two\n\n  * three\n", "E = mc² and ∑ xᵢ ≤ ∞", "2024-02-29T23:59:59+01:00",
    "+49 (30) 1234-5678", "It's John's; they'll say \"we've won\", I'D think.",
    "Wait...   what?!  No way!!!\n\n\nOK.", " leading and trailing ",
    "Ünïcödé ist schön, n'est-ce pas ? Ça va très bien.", "Это предложение. А это — другое!",
    "今日は2024年3月1日です。", "你好，世界！我有12345个苹果。", "한국어 문장입니다. 123개!",
    "यह एक वाक्य है। १२३", "هذه جملة، وهذه أخرى؟", "ชื่อของฉันคือ 42", "a" * 40, "ab" * 20, "=" * 37,
    "\n" * 19, " " * 35, "0" * 25, "🙂" * 5, "ha" * 9 + "!" * 7, "日" * 11,
    "it'sabc 'Tis O'Neill's x'Re we'LLgo", "é́a ीx कि",
)  # fmt: skip
SHOWN_CONTROL_TOKENS: Final = 24
"""Maximum number of control tokens; a model may have thousands."""


def trial_texts(control_tokens: Sequence[str]) -> list[str]:
    """A few hundred texts, determined by the control tokens."""
    kinds = (WORDS, NUMBERS, SIGNS, SPACES)
    alone = [text for kind in kinds for text in kind]
    # Each with others of every kind, at coprime distances.
    beside = [
        one + SPACES[(3 * place) % 5] * (step % 2) + other[(7 * place + step) % len(other)] + one
        for step, other in enumerate(kinds)
        for place, one in enumerate(alone)
    ]
    shown = control_tokens[:SHOWN_CONTROL_TOKENS]
    around = [text for token in shown for text in (token, f"a{token}b", f" {token} c 1{token}{token}\n{token}")]
    return [*LINES, *alone, *beside, *around]
