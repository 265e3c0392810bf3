"""Acceptance traces: recorded generations of a family's target, and the candidates of each drafter along them.

A simulation that replays them drafts and verifies real text of real models without running any. Of the toy family's
prompts only length and likelihood are kept; those of the real family are kept, since copying from them is part of
its speed.
"""

import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from cosine_engine.zoo.family import Family
from cosine_protocol.errors import UsageError
from cosine_protocol.noise import noise_bits

# The vocabulary and the end-of-text token of the toy family.
VOCAB_TOKENS: Final = 4096
EOS: Final = (0,)
BASE: Final = VOCAB_TOKENS
"""Stand-in prompts spell numbers in digits below this, which are tokens of every family."""
DATA: Final = Path(str(resources.files(__package__))) / "data"
"""The recorded texts that come with the laboratory."""

SHIPPED: Final = {Family.TOY: "family_traces.npz", Family.SMOL: "smol_traces.npz"}
"""The files of recorded generations that the node comes with."""
CANDIDATES: Final = 8
"""Candidates kept for each position, as many as a drafter ever asks for."""
DIGITS: Final = 2
"""Tokens of a stand-in prompt that spell the number of its trace; no prompt is shorter."""

Floats = NDArray[np.float32]
Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class DrafterTrace:
    """The candidates of one drafter along the target's stream of n tokens, each after all true tokens before it.

    `candidate_tokens` (n, 8): tokens by falling keyed score after prompt + stream[:i]. `candidate_probabilities`
    (n, 8): the engine's own estimate, 0..1 (`cosine_engine.base.Choice`). `log_probability` (n,): log of
    q(stream[i] | before) at temperature 1. `overlap` (n,): sum over the vocabulary of min(p, q) = 1 - TV at the
    trace's temperature; at 0 it is 1 where the likeliest tokens agree, else 0. `prompt_nll`: mean of the prompt
    tokens after the first, in nats.
    """

    candidate_tokens: Tokens
    candidate_probabilities: Floats
    log_probability: Floats
    overlap: Floats
    prompt_nll: float

    def arrays(self) -> tuple[Tokens, Floats, Floats, Floats]:
        """The fields that hold a value for each position, in their order."""
        return self.candidate_tokens, self.candidate_probabilities, self.log_probability, self.overlap


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One generation of the target, and the candidates of every drafter, by model name, along it.

    `stream` holds the output tokens and ends with an EOS token or at the recorded length. `near_ties` is True
    where the target's two best scores lay within 1e-4. `asked` is the prompt, where it is kept; `vocab_tokens` are
    those of the target. Raises `UsageError` for parts that do not fit together.
    """

    number: int
    domain: str
    split: str
    temperature: float
    seed: int
    prompt_tokens: int
    stream: tuple[int, ...]
    near_ties: tuple[bool, ...]
    drafters: Mapping[str, DrafterTrace]
    asked: tuple[int, ...] = ()
    eos: tuple[int, ...] = EOS
    vocab_tokens: int = VOCAB_TOKENS

    def __post_init__(self) -> None:
        if not (0 <= self.number < BASE**DIGITS and self.prompt_tokens >= DIGITS):
            raise UsageError(
                f"A trace needs a number below {BASE**DIGITS} and {DIGITS} prompt tokens to spell it, "
                f"not {self.number} and {self.prompt_tokens}."
            )
        if self.asked and len(self.asked) != self.prompt_tokens:
            raise UsageError(f"Trace {self.number} has a prompt of another length than it says.")
        lengths = {len(array) for drafter in self.drafters.values() for array in drafter.arrays()}
        if not self.stream or lengths | {len(self.near_ties)} != {len(self.stream)}:
            raise UsageError(f"Trace {self.number} does not hold as many of everything as tokens in its stream.")

    def prompt(self) -> tuple[int, ...]:
        """A stand-in prompt of `prompt_tokens` tokens that spells `number`, lowest digit first.

        The recorded prompt follows these digits, or filler where it is not kept.
        """
        digits = [self.number // BASE**exponent % BASE for exponent in range(DIGITS)]
        filler = (
            self.drawn_token(noise_bits(seed=self.number, position=position, token=0))
            for position in range(DIGITS, self.prompt_tokens)
        )
        return (*digits, *(self.asked[DIGITS:] if self.asked else filler))

    def drawn_token(self, bits: int) -> int:
        """A token that a hash draws, never one that ends a text."""
        first = max(self.eos) + 1
        return first + bits % (BASE - first)


class TraceSet:
    """Traces by number, all of one target. Raises `UsageError` where two share a number."""

    def __init__(self, traces: Iterable[Trace]) -> None:
        self._by_number: dict[int, Trace] = {}
        for trace in traces:
            if self._by_number.setdefault(trace.number, trace) is not trace:
                raise UsageError(f"There are two traces with the number {trace.number}.")
        self.eos = next((trace.eos for trace in self), EOS)
        self.vocab_tokens = next((trace.vocab_tokens for trace in self), VOCAB_TOKENS)

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Trace]:
        return iter(self._by_number.values())

    def find(self, prompt: Sequence[int]) -> Trace:
        """The trace whose stand-in prompt this is. Raises `UsageError` for any other prompt."""
        number = sum(digit * BASE**exponent for exponent, digit in enumerate(prompt[:DIGITS]))
        trace = self.numbered(number)
        if tuple(prompt) != trace.prompt():
            raise UsageError(f"The prompt of {len(prompt)} tokens is not the stand-in of trace {trace.number}.")
        return trace

    def numbered(self, number: int) -> Trace:
        """The trace with that number. Raises `UsageError` if there is none."""
        trace = self._by_number.get(number)
        if trace is None:
            raise UsageError(f"There is no trace with the number {number}.")
        return trace

    def select(
        self,
        *,
        split: str | None = None,
        temperature: float | None = None,
        domains: Collection[str] | None = None,
    ) -> tuple[Trace, ...]:
        """Traces with these properties: the first of every domain, then the second of each, and so on."""
        by_domain: dict[str, list[Trace]] = {domain: [] for domain in domains or ()}
        for trace in self:
            is_wanted = split in (None, trace.split) and temperature in (None, trace.temperature)
            if is_wanted and (domains is None or trace.domain in domains):
                by_domain.setdefault(trace.domain, []).append(trace)
        rounds = chain.from_iterable(zip_longest(*by_domain.values()))
        return tuple(trace for trace in rounds if trace is not None)

    @classmethod
    def load(cls, path: Path) -> "TraceSet":
        """Read an .npz file of traces. Raises `UsageError` for a file that is missing or not of this kind."""
        if not zipfile.is_zipfile(path):
            raise UsageError(f"No traces can be read from {path}: it is missing or no .npz file.")
        try:
            with path.open("rb") as file:
                return _unpacked(file)
        except (KeyError, ValueError, zipfile.BadZipFile) as error:
            raise UsageError(f"No traces can be read from {path}: {error}") from error

    @classmethod
    def load_shipped(cls, family: Family = Family.TOY) -> "TraceSet":
        """The traces of a family. Raises `UsageError` where this installation has none of it."""
        return cls.load(DATA / SHIPPED[family])


_OF_TRACE: Final = ("number", "domain", "split", "temperature", "seed", "prompt_tokens")
"""Fields of a `Trace` that are one value each in the file."""
_OF_POSITION: Final = {
    "candidate_tokens": ("candidate_tokens", np.int32),
    "candidate_claims": ("candidate_probabilities", np.float32),
    "log_probability": ("log_probability", np.float32),
    "overlap": ("overlap", np.float32),
}
"""Arrays of the file, [model, position in all streams]: the field of a `DrafterTrace` and its type."""


def _unpacked(file: IO[bytes]) -> TraceSet:
    with np.load(file, allow_pickle=False) as archive:
        stored = dict(archive.items())
    return TraceSet(_traces(stored))


def _traces(stored: Mapping[str, Any]) -> Iterator[Trace]:
    along = {field: stored[name].astype(dtype) for name, (field, dtype) in _OF_POSITION.items()}
    ends = np.cumsum(stored["stream_tokens"], dtype=np.int64).tolist()
    eos = tuple(stored["eos"].tolist()) if "eos" in stored else EOS
    # A file has the prompts of all of its traces, or of none.
    asked = stored.get("asked", np.zeros(0, np.uint16)).tolist()
    asked_to = 0
    for index, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        asked_from, asked_to = asked_to, asked_to + int(stored["prompt_tokens"][index])
        drafters = {
            str(model): DrafterTrace(
                **{field: array[row, start:stop] for field, array in along.items()},
                prompt_nll=float(stored["prompt_nll"][row, index]),
            )
            for row, model in enumerate(stored["models"])
        }
        yield Trace(
            **{name: stored[name][index].item() for name in _OF_TRACE},
            stream=tuple(stored["stream"][start:stop].tolist()),
            near_ties=tuple(stored["near_ties"][start:stop].tolist()),
            drafters=drafters,
            asked=tuple(asked[asked_from:asked_to]),
            eos=eos,
            vocab_tokens=int(stored.get("vocab_tokens", VOCAB_TOKENS)),
        )
