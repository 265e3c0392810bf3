"""What fixes the output: a request is target, prompt, sampling parameters and seed (DESIGN idea I)."""

from dataclasses import dataclass, field

from cosine_protocol import limits
from cosine_protocol.errors import UsageError

MAX_SEED = (1 << 64) - 1


def _is_whole(value: object, high: int) -> bool:
    return isinstance(value, int) and 0 <= value <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Parameters of the keyed sampler. Defaults mean greedy decoding with nothing filtered.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 and `repetition_penalty` 1 switch a filter off.
    Raises `UsageError` for values that mean nothing.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        low, high = limits.MIN_REPETITION_PENALTY, limits.MAX_REPETITION_PENALTY
        for value, is_valid, sentence in (
            (
                self.temperature,
                0 <= self.temperature <= limits.MAX_TEMPERATURE,
                f"temperature must lie between 0 and {limits.MAX_TEMPERATURE:,.0f}",
            ),
            (
                self.top_k,
                _is_whole(self.top_k, limits.MAX_TOKEN_ID),
                f"top_k must be a whole number from 0 (off) to {limits.MAX_TOKEN_ID}",
            ),
            (self.top_p, limits.MIN_TOP_P <= self.top_p <= 1, f"top_p must lie between {limits.MIN_TOP_P:g} and 1"),
            (self.min_p, 0 <= self.min_p <= 1, "min_p must lie between 0 and 1"),
            (
                self.repetition_penalty,
                low <= self.repetition_penalty <= high,
                f"repetition_penalty must lie between {low:g} and {high:g}",
            ),
            (self.seed, _is_whole(self.seed, MAX_SEED), "seed must be a whole number from 0 to 2**64 - 1"),
        ):
            if not is_valid:
                raise UsageError(f"{sentence}, not {value}.")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation as every peer sees it.

    All fields but `max_new_tokens` enter the digest `d_0`; the noise depends on `sampling.seed` alone.
    """

    target_digest: bytes
    tokenizer_digest: bytes
    numerics: str
    prompt: tuple[int, ...] = field(repr=False)
    sampling: Sampling
    eos: tuple[int, ...]
    client: str
    nonce: bytes
    max_new_tokens: int
