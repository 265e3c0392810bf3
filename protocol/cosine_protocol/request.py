"""A request, which fixes the output (docs/design.md, "The output is a function of the request")."""

import reprlib
from dataclasses import dataclass, field
from enum import IntEnum
from numbers import Real
from typing import Annotated, Final

from cosine_protocol import fields as f
from cosine_protocol.errors import MalformedMessage, UsageError

MAX_TEMPERATURE: Final = 1e6  # Any distribution is nearly uniform.
MIN_TOP_P: Final = 1e-9  # With 0 no token would remain.
MIN_REPETITION_PENALTY: Final = 1e-6  # Scores are divided by it.
MAX_REPETITION_PENALTY: Final = 1 / MIN_REPETITION_PENALTY  # The inverse of the minimum.
MAX_PENALTY: Final = 2.0  # As in OpenAI's API.
MAX_BIAS: Final = 100.0  # As in OpenAI's API: larger than differences of scores.
MAX_BIASES: Final = 300  # As in OpenAI's API; they take 5 KB.
MAX_BAD_WORDS: Final = 512  # With a few tokens each they take 10 KB.
MAX_BAD_WORD_TOKENS: Final = 64  # A longer text is not a word.
MAX_CONSTRAINT_BYTES: Final = 1 << 16  # Large JSON schemas of real tools have some 30 KB.
MAX_EOS_TOKENS: Final = 64  # Models have a handful.
MAX_TOP_LOGPROBS: Final = 20  # As in OpenAI's API.
NONCE_BYTES: Final = 16  # 128 random bits never repeat.
MAX_SEED: Final = (1 << 64) - 1  # Eight bytes, the word of the keyed noise (`noise.py`).


BadWord = Annotated[tuple[f.Token, ...], f.AtMost(MAX_BAD_WORD_TOKENS)]


@dataclass(frozen=True, slots=True)
class TokenBias:
    """A number that is added to the score of a token."""

    token: f.Token
    bias: Annotated[float, f.Real(MAX_BIAS, -MAX_BIAS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """Changes to the scores of some tokens, depending on the output so far; the defaults change nothing.

    `presence_penalty` is subtracted from the score of each token of the output, `frequency_penalty` for each
    occurrence. The last token of a sequence in `bad_words` is not chosen after those before it, and none of
    `held_back` before `min_tokens`. Raises `UsageError` for invalid values.
    """

    presence_penalty: Annotated[float, f.Real(MAX_PENALTY, -MAX_PENALTY)] = 0.0
    frequency_penalty: Annotated[float, f.Real(MAX_PENALTY, -MAX_PENALTY)] = 0.0
    logit_bias: Annotated[tuple[TokenBias, ...], f.AtMost(MAX_BIASES)] = ()
    bad_words: Annotated[tuple[BadWord, ...], f.AtMost(MAX_BAD_WORDS)] = ()
    min_tokens: Annotated[int, f.Whole(f.MAX_NEW_TOKENS)] = 0
    held_back: Annotated[tuple[f.Token, ...], f.AtMost(MAX_EOS_TOKENS)] = ()

    def __post_init__(self) -> None:
        _check_fields(self)

    @property
    def tokens(self) -> tuple[int, ...]:
        words = [token for word in self.bad_words for token in word]
        return (*(one.token for one in self.logit_bias), *words, *self.held_back)


class ConstraintKind(IntEnum):
    """Languages of constraints, as llguidance reads them, each named as the option of a client."""

    SCHEMA = 1
    REGEX = 2
    GRAMMAR = 3

    @property
    def option(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint of the output: a JSON schema, a regular expression, or a Lark grammar.

    The output ends with one of `ends`. Raises `UsageError` if the text is too long.
    """

    kind: Annotated[int, f.Whole(len(ConstraintKind), 1)]
    text: Annotated[str, f.Text(MAX_CONSTRAINT_BYTES)]
    ends: Annotated[tuple[f.Token, ...], f.AtMost(MAX_EOS_TOKENS)]

    def __post_init__(self) -> None:
        try:
            for name, kind in f.fields_of(Constraint):
                kind.pack(getattr(self, name))
        except MalformedMessage:
            raise UsageError(f"A constraint must be a text of at most {MAX_CONSTRAINT_BYTES} bytes.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Parameters of the keyed sampler. Defaults mean greedy decoding with nothing filtered.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 and `repetition_penalty` 1 switch a filter off.
    Raises `UsageError` for invalid values.
    """

    temperature: Annotated[float, f.Real(MAX_TEMPERATURE)] = 0.0
    top_k: Annotated[int, f.Whole(f.MAX_TOKEN_ID)] = 0
    top_p: Annotated[float, f.Real(1.0, MIN_TOP_P)] = 1.0
    min_p: Annotated[float, f.Real(1.0)] = 0.0
    repetition_penalty: Annotated[float, f.Real(MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY)] = 1.0
    seed: Annotated[int, f.Whole(MAX_SEED)] = 0
    shaping: Shaping | None = None
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        _check_fields(self)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


def _check_fields(parameters: Shaping | Sampling) -> None:
    """Raise `UsageError` for a field out of its bounds."""
    cls: type = type(parameters)
    for name, kind in f.fields_of(cls):
        value = getattr(parameters, name)
        if isinstance(kind, f.Added):
            continue
        try:
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if isinstance(kind, f.Real | f.Whole) and not is_number:
                raise MalformedMessage("not a number")
            kind.pack(value)
        except (MalformedMessage, OverflowError):
            raise UsageError(f"{name} must {_BOUNDS[name]}, not {reprlib.repr(value)}.") from None


# The bounds in the types above as sentences.
_BOUNDS: Final = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), f"lie between -{MAX_PENALTY:g} and {MAX_PENALTY:g}"),
    "logit_bias": f"name at most {MAX_BIASES} tokens, each with a bias from -{MAX_BIAS:g} to {MAX_BIAS:g}",
    "bad_words": f"be at most {MAX_BAD_WORDS} sequences of at most {MAX_BAD_WORD_TOKENS} tokens",
    "min_tokens": f"be a whole number from 0 to {f.MAX_NEW_TOKENS}",
    "held_back": f"be at most {MAX_EOS_TOKENS} token ids",
    "temperature": f"lie between 0 and {MAX_TEMPERATURE:,.0f}",
    "top_k": f"be a whole number from 0 (off) to {f.MAX_TOKEN_ID}",
    "top_p": f"lie between {MIN_TOP_P:g} and 1",
    "min_p": "lie between 0 and 1",
    "repetition_penalty": f"lie between {MIN_REPETITION_PENALTY:g} and {MAX_REPETITION_PENALTY:g}",
    "seed": "be a whole number from 0 to 2**64 - 1",
}


@dataclass(frozen=True, slots=True)
class AskedLogprobs:
    """Ask for the likelihood of each token (with `of_prompt` also of the prompt's) and the `top` likeliest."""

    top: Annotated[int, f.Whole(MAX_TOP_LOGPROBS)]
    of_prompt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A generation on the wire. All but `max_new_tokens` enters `d_0`; noise depends on `sampling.seed` only."""

    target_digest: f.ContentDigest
    tokenizer_digest: f.ContentDigest
    numerics: f.Name
    prompt: Annotated[tuple[f.Token, ...], f.AtMost(f.MAX_PROMPT_TOKENS)] = field(repr=False)
    sampling: Annotated[Sampling, f.Inline(Sampling)]
    eos: Annotated[tuple[f.Token, ...], f.AtMost(MAX_EOS_TOKENS)]
    client: f.PeerId
    nonce: Annotated[bytes, f.exactly(NONCE_BYTES)]
    max_new_tokens: Annotated[int, f.Whole(f.MAX_NEW_TOKENS, 1)]
    logprobs: AskedLogprobs | None = None
