"""Small tokenizers of every kind that language models have, made of a few lines, the same in every run.

The trainers of `tokenizers` break ties at random but for byte-pair encoding without options.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from cosine_p2p.text.tokenizer import TextTokenizer

FAMILY: Final = "👩\u200d👩\u200d👧"
LINES: Final = (
    "The keeper opened the door, and it 's not what he'd said: \"don't!\" She was n't there .",
    "Ein Übermut tut selten gut; el niño está aquí. cafe\u0301 e\u0323\u0301",
    "日本語の文章です。中文也行。한국어도 됩니다",
    "def read(path):\n    return [line for line in path]  # two  spaces\n",
    f"🙂🙂 {FAMILY} 🇫🇷🏳️\u200d🌈 👍🏽 ok",
)
SPECIAL: Final = ("<s>", "</s>", "<unk>", "<|turn|>")
BYTES: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))
VOCAB_TOKENS: Final = 420
PREFIXED: Final = (normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"))


def _with_specials(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def _trained(tokenizer: Tokenizer, lines: Iterable[str], first: Iterable[str], alphabet: list[str]) -> Tokenizer:
    """A tokenizer whose vocabulary begins with tokens that are no special ones."""
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_TOKENS, initial_alphabet=alphabet, special_tokens=list(first), show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    made = Tokenizer(tokenizer.model)
    made.normalizer, made.pre_tokenizer, made.decoder = (
        tokenizer.normalizer,
        tokenizer.pre_tokenizer,
        tokenizer.decoder,
    )
    return _with_specials(made)


def _words(pre_tokenizer: Any) -> list[str]:
    """The words of the lines as they come first."""
    found = [word for line in LINES for word, _ in pre_tokenizer.pre_tokenize_str(line)]
    return list(dict.fromkeys(found))


def _letters(words: Iterable[str]) -> list[str]:
    return sorted(set("".join(words)))


def byte_level() -> Tokenizer:
    """Like GPT-2, Llama 3 and Qwen: every token is bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, LINES, (), pre_tokenizers.ByteLevel.alphabet())


def byte_fallback(*steps: Any, normalizer: Any) -> Tokenizer:
    """Like Llama 2, Mistral, Gemma and Phi 3: characters outside the vocabulary are tokens of their bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence(list(steps))
    european = ["".join(letter for letter in line if letter < "\u0250") for line in LINES]
    return _trained(tokenizer, european, ("<unk>", *BYTES), [])


def unigram() -> Tokenizer:
    """Like T5 and XLM-R: pieces with a mark for the space before them."""
    splitter = pre_tokenizers.Metaspace(prepend_scheme="always")
    words = _words(splitter)
    pieces = dict.fromkeys([*words, *(word[:4] for word in words), *_letters(words)], -1.0)
    tokenizer = Tokenizer(models.Unigram([("<unk>", -9.0), *pieces.items()], unk_id=0))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return _with_specials(tokenizer)


def word_piece(decoder: Any) -> Tokenizer:
    """Like BERT: pieces with a mark where no space is before them."""
    splitter = pre_tokenizers.BertPreTokenizer()
    words = _words(splitter)
    pieces = [*(word[:4] for word in words), *(f"##{letter}" for letter in _letters(words))]
    names = dict.fromkeys(["<unk>", *pieces, *_letters(words)])
    tokenizer = Tokenizer(models.WordPiece({name: token for token, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoder
    return _with_specials(tokenizer)


def word_ends() -> Tokenizer:
    """Like the first GPT: a mark where a space is after the piece."""
    letters = _letters(_words(pre_tokenizers.Whitespace()))
    merges = [("t", "h"), ("th", "e</w>"), ("i", "s</w>")]
    names = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges)]
    vocabulary = {name: token for token, name in enumerate(names)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix="</w>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer.add_tokens(["odd</w>one"])
    return _with_specials(tokenizer)


SPACES: Final = decoders.Replace("▁", " ")
KINDS: Final[dict[str, Callable[[], Tokenizer]]] = {
    "byte level": byte_level,
    "byte fallback, as Llama 2": lambda: byte_fallback(
        SPACES,
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
        normalizer=normalizers.Sequence(list(PREFIXED)),
    ),
    "byte fallback, as Gemma": lambda: byte_fallback(
        SPACES, decoders.ByteFallback(), decoders.Fuse(), normalizer=PREFIXED[1]
    ),
    "byte fallback and marks": lambda: byte_fallback(
        decoders.ByteFallback(), decoders.Metaspace(), normalizer=normalizers.Sequence(list(PREFIXED))
    ),
    "unigram": unigram,
    "word piece": lambda: word_piece(decoders.WordPiece()),
    "word piece, cleaned as a whole": lambda: word_piece(
        decoders.Sequence([decoders.WordPiece(cleanup=False), decoders.Fuse(), decoders.Replace(" .", ".")])
    ),
    "ends of words": word_ends,
}
"""With a kind that is cleaned as a whole a later token can change any text: nothing is certain before the end."""


@cache
def codec_of(kind: str) -> TextTokenizer:
    return TextTokenizer({"tokenizer.json": KINDS[kind]().to_str().encode()})


def ids(codec: TextTokenizer, *names: str) -> list[int]:
    vocabulary = codec.library.get_vocab()
    return [vocabulary[name] for name in names]
