"""Small tokenizers of every kind that language models have, trained on a few lines."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from cosine_p2p.tokenizer import TextCodec

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


def _trained(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_special_tokens([token for token in SPECIAL if tokenizer.token_to_id(token) is None])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def byte_level(*, prefix_space: bool) -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen: every token is bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_TOKENS, initial_alphabet=letters, special_tokens=list(SPECIAL), show_progress=False
    )
    return _trained(tokenizer, trainer)


def byte_fallback(*steps: Any, normalizer: Any) -> Tokenizer:
    """As Llama 2, Mistral, Gemma and Phi 3: characters outside the vocabulary are tokens of their bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence(list(steps))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_TOKENS, limit_alphabet=60, special_tokens=[*SPECIAL, *BYTES], show_progress=False
    )
    tokenizer = _trained(tokenizer, trainer)
    # They are tokens of the model and not special: those that the trainer adds on top would be left out of texts.
    plain = Tokenizer(tokenizer.model)
    plain.normalizer, plain.decoder = tokenizer.normalizer, tokenizer.decoder
    plain.add_special_tokens(list(SPECIAL))
    plain.add_tokens([AddedToken("<tool>", normalized=False)])
    return plain


def unigram(*, prepend: str) -> Tokenizer:
    """As T5 and XLM-R: pieces with a mark for the space before them."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCAB_TOKENS, special_tokens=list(SPECIAL), unk_token="<unk>", show_progress=False
    )
    return _trained(tokenizer, trainer)


def word_piece(decoder: Any) -> Tokenizer:
    """As BERT: pieces with a mark where no space is before them."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoder
    trainer = trainers.WordPieceTrainer(vocab_size=VOCAB_TOKENS, special_tokens=list(SPECIAL), show_progress=False)
    return _trained(tokenizer, trainer)


def word_ends() -> Tokenizer:
    """As the first GPT: a mark where a space is after the piece."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_TOKENS, end_of_word_suffix="</w>", special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer = _trained(tokenizer, trainer)
    tokenizer.add_tokens(["odd</w>one"])
    return tokenizer


def words(decoder: Any = None) -> Tokenizer:
    """Whole words, without any decoder or with an odd one."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if decoder is not None:
        tokenizer.decoder = decoder
    trainer = trainers.WordLevelTrainer(special_tokens=list(SPECIAL), show_progress=False)
    return _trained(tokenizer, trainer)


SPACES: Final = decoders.Replace("▁", " ")
CLEANING: Final = decoders.Replace(" .", ".")
KINDS: Final[dict[str, Callable[[], Tokenizer]]] = {
    "byte level": lambda: byte_level(prefix_space=False),
    "byte level with a space before": lambda: byte_level(prefix_space=True),
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
    "unigram": lambda: unigram(prepend="always"),
    "unigram without a space before": lambda: unigram(prepend="never"),
    "word piece": lambda: word_piece(decoders.WordPiece()),
    "word piece, cleaned as a whole": lambda: word_piece(
        decoders.Sequence([decoders.WordPiece(cleanup=False), decoders.Fuse(), CLEANING])
    ),
    "ends of words": word_ends,
    "words": words,
    "words, spaces cleaned by a pattern": lambda: words(
        decoders.Sequence([decoders.WordPiece(), decoders.Fuse(), decoders.Replace(Regex(" +"), "")])
    ),
}
"""Those that are cleaned as a whole can change any text with a later token: nothing is certain before the end."""
WHOLE_AT_THE_END: Final = frozenset({"word piece, cleaned as a whole", "words, spaces cleaned by a pattern"})


@cache
def codec_of(kind: str) -> TextCodec:
    """The codec of one of `KINDS`."""
    return TextCodec({"tokenizer.json": KINDS[kind]().to_str().encode()})


def ids(codec: TextCodec, *names: str) -> list[int]:
    """Tokens by their names in the vocabulary."""
    vocabulary = codec._tokenizer.get_vocab()
    return [vocabulary[name] for name in names]


def random_tokens(codec: TextCodec, rng: random.Random, least: int) -> list[int]:
    """Tokens of parts of texts, cut anywhere, with runs of bytes, special tokens and some of no vocabulary."""
    names = codec._tokenizer.get_vocab()
    tokens: list[int] = []
    while len(tokens) < least:
        match rng.randrange(7):
            case 0:
                tokens.append(rng.randrange(codec.vocab_tokens + 2))
            case 1:
                tokens += rng.choices([names[name] for name in (*SPECIAL, "<tool>")], k=rng.choice([1, 1, 20]))
            case 2:
                text = "".join(rng.choices(("🙂", FAMILY, "é", "\u0301", "ぬ", "\ufffd"), k=rng.randrange(1, 8)))
                found = [names.get(f"<0x{byte:02X}>") for byte in text.encode()]
                tokens += [token for token in found if token is not None] or codec.encode(text)
            case 3:
                tokens += codec.encode(rng.choice(("\ufffd", " ", "▁", ".", "'s", "n't")))[-1:]
            case _:
                line = rng.choice(LINES)
                begin = rng.randrange(len(line))
                whole = codec.encode(line[begin : begin + rng.randrange(1, 12)])
                begin = rng.randrange(len(whole)) if whole and rng.random() < 0.3 else 0
                tokens += whole[begin : len(whole) - (rng.random() < 0.2)]
    return tokens
