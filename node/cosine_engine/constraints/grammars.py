"""Constraints of texts: the tokens that may come next, so that every output satisfies its request.

*Theory of operation.* llguidance compiles a JSON schema, a regular expression or a Lark grammar to a matcher of
bytes. `Grammars` keeps one compiled matcher per constraint, and each sequence has a copy, its `Guide`, which
follows the kept output. The masks of a token tree are computed depth first, by copies that consume the tokens of
each node. A mask depends only on the constraint and the tokens before it, and is therefore the same for the target,
its drafters and auditors.

*The end.* End tokens (`Constraint.ends`) are allowed only where the text may end and where nothing else is
possible, even if the grammar contains their letters or names them. Other special tokens are allowed only where a
Lark grammar names them (`<|name|>`, `<[*]>`). After a token that breaks the grammar, which is never an honest
choice, no token is ruled out: no text gets there.

*Bounds.* A constraint is first tried in a separate process (`trial`), which is ended after a time limit: some short
ones would take years. The trial also measures its memory, which bounds the constraints kept. Afterwards the cost of
a token is bounded by the limits of llguidance, and by the amount that a grammar may force at once; a text beyond
them fails (`GrammarTooComplex`) and never continues without its constraint.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np
import numpy.typing as npt

from cosine_engine.processes.answer import answer_of
from cosine_p2p.replies.llguidance_schemas import for_llguidance
from cosine_p2p.request.offload import Offload, Threads
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.text.tokenizer import load_tokenizer
from cosine_protocol.errors import CosineError
from cosine_protocol.request import Constraint, ConstraintKind, Sampling

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

Mask = npt.NDArray[np.uint8]
"""One bit per token, the lowest of a byte first: 1 for an allowed token. Tokens beyond its end are ruled out."""
Tokens = tuple[int, ...]

TRIAL: Final = "cosine_engine.constraints.trial:trial"
"""The function that tries a constraint in a separate process."""
GRAMMAR_TRIAL_S: Final = 5.0
"""Time limit of a trial. A schema of 40 KB takes 0.3 s including the start of the process on a server core, so that
a machine a tenth as fast accepts it. Slower constraints may take years (docs/decisions/0048), and two of them delay
all later trials by this time.
"""
WHITESPACE: Final = "[ \\n\\r\\t]{1,32}"
"""Bounded white space between the parts of JSON, so that texts end; schemas may change it (`x-guidance`)."""
USUAL_JSON: Final = "\n".join(
    json.dumps({"a": 1, "b": "c", "d": [{"e": True, "f": "g"}, {"e": None, "f": "h"}]}, indent=indent)
    for indent in (None, 2)
)
"""An example of text under a schema, before any output."""
FORCED_PROBABILITY: Final = 0.995
"""The confidence of a forced token: in texts of the embedded target under a schema, all 199 (a sixth) came true."""
MAX_FORCED: Final = 32
"""Forced tokens drafted at once, which bounds a pass: property names are rarely longer."""
MAX_COMPILED: Final = 256
"""Bounds memory: known constraints, compiled or refused."""
MAX_FORCED_BYTES: Final = 4096
"""Maximum number of bytes that a grammar may force. A mask takes 0.3 us per such byte, at every node of a tree:
with `a{190000}` a tree of 16 nodes took a second of a processor, and the constraint 62 MiB.
"""
MAX_ONE_BYTES: Final = 32 << 20
"""Maximum memory of one constraint: schemas of 60 KB take up to 17 MiB."""
MAX_KEPT_BYTES: Final = 256 << 20
"""Maximum memory of all kept constraints as measured by their trials, exact to a third."""
MAX_REASON: Final = 160
"""Maximum length of a message of llguidance."""
AT_ONCE: Final = 2
"""Constraints tried at once."""


class GrammarTooComplex(CosineError):
    """The constraint of a text exceeds the cost limit of a token. The message is one sentence."""


def limits() -> "LLParserLimits":
    """The limits of a constraint. The fuel of a token is at most a tenth of a second of work."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def grammar_of(kind: int, text: str) -> str:
    """Return a constraint in llguidance's form. Raises `ValueError` or `RecursionError`."""
    from llguidance import LLMatcher

    match ConstraintKind(kind):
        case ConstraintKind.SCHEMA:
            schema = for_llguidance(json.loads(text))
            text = json.dumps(schema, ensure_ascii=False)
            own = schema.get("x-guidance") if isinstance(schema, dict) else None
            # A pattern must not contain the flag.
            if isinstance(own, dict) and "whitespace_flexible" in own:
                return LLMatcher.grammar_from_json_schema(text)
            return LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": WHITESPACE})
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(text)
        case ConstraintKind.GRAMMAR:
            return LLMatcher.grammar_from_lark(text)


def fault_in(matcher: "LLMatcher") -> str:
    """Return the fault of a new matcher as a clause, "" if it has none, after computing its first mask."""
    if not matcher.is_error():
        # The first mask may take longer than any later one.
        matcher.compute_bitmask()
    if not matcher.is_error() and len(matcher.compute_ff_bytes()) > MAX_FORCED_BYTES:
        return f"it forces more than {MAX_FORCED_BYTES} bytes at once"
    return clause(matcher.get_error())


def clause(said: str) -> str:
    """Return a message of llguidance on one line, shortened."""
    line = " ".join(said.split())
    return line if len(line) <= MAX_REASON else f"{line[:MAX_REASON]} ..."


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of a trial: the fault of a constraint as a clause, "" for none, and its memory."""

    fault: str
    size_bytes: int = 0


def tried(constraint: Constraint) -> Tried:
    """Try a constraint in a process with a time limit. Blocks. Raises `OSError` if no process can be started."""
    try:
        fault, size_bytes = answer_of(TRIAL, constraint.kind, constraint.text, timeout_s=GRAMMAR_TRIAL_S)
    except TimeoutError:
        return Tried(f"it cannot be compiled within {GRAMMAR_TRIAL_S:g} s")
    except ValueError:
        return Tried("it is too large")
    return Tried(fault or ("it is too large" if size_bytes > MAX_ONE_BYTES else ""), size_bytes)


@dataclass(frozen=True, slots=True)
class _Compiled:
    matcher: "LLMatcher"
    size_bytes: int


class Grammars:
    """The constraints of a target's texts, each compiled once.

    `prepare` is for the event loop; all other methods may be called in any thread.
    """

    def __init__(
        self,
        tokenizer: "LLTokenizer",
        *,
        waits: bool = True,
        offload: Offload | None = None,
        tried: Callable[[Constraint], Tried] = tried,
    ) -> None:
        """Create it; with `waits`, as in a verifier, guides wait for their grammars, unlike those of a drafter."""
        self._tokenizer = tokenizer
        self._waits = waits
        self._offload = offload or Threads("grammars", AT_ONCE)
        self._tried = tried
        self._lock = Lock()
        self._known: Remembered[Constraint, _Compiled | str] = Remembered(MAX_COMPILED)

    @classmethod
    def of(cls, folder: Path, *, waits: bool = True) -> "Grammars | None":
        """Return the constraints for the tokenizer in a folder; None without llguidance or support for it.

        Raises `UsageError` for a folder without a tokenizer.
        """
        try:
            from llguidance import LLTokenizer
        except ImportError:
            return None
        library = load_tokenizer(folder).library
        try:
            return cls(LLTokenizer(library.to_str()), waits=waits)
        except ValueError:
            # A tokenizer whose bytes llguidance does not know has no constraints.
            return None

    @cached_property
    def usual_json(self) -> Tokens:
        """The tokens of typical JSON, on one line and on many."""
        return tuple(self._tokenizer.tokenize_str(USUAL_JSON))

    def fault(self, constraint: Constraint) -> str | None:
        """Return the fault of a constraint as a clause, "" for none, None if unknown."""
        with self._lock:
            known = self._known.get(constraint)
        return "" if isinstance(known, _Compiled) else known

    async def prepare(self, constraint: Constraint) -> None:
        """Find out the fault of a constraint, off the event loop. Raises `OSError`."""
        if self.fault(constraint) is None:
            await self._offload(lambda: self._try(constraint))

    def guide(self, constraint: Constraint) -> "Guide":
        """Return the guide of a new sequence under a prepared constraint; under a refused one it fails at once."""
        if fault := self.fault(constraint):
            return Guide(
                constraint, self._tokenizer, lambda: None, fault=f"The constraint cannot be used: {fault}."
            )
        if self._waits:
            # It may have been dropped since it was prepared.
            return Guide(constraint, self._tokenizer, lambda: self._find(constraint) or self._compile(constraint))
        return Guide(constraint, self._tokenizer, lambda: self._find(constraint))

    def _try(self, constraint: Constraint) -> None:
        if self.fault(constraint) is not None:
            return
        found = self._tried(constraint)
        if found.fault:
            self._note(constraint, found.fault)
            return
        matcher = self._compile(constraint)
        self._note(constraint, fault_in(matcher) or _Compiled(matcher, found.size_bytes))

    def _compile(self, constraint: Constraint) -> "LLMatcher":
        from llguidance import LLMatcher

        grammar = grammar_of(constraint.kind, constraint.text)
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits())

    def _find(self, constraint: Constraint) -> "LLMatcher | None":
        with self._lock:
            known = self._known.get(constraint)
            return known.matcher.deep_copy() if isinstance(known, _Compiled) else None

    def _note(self, constraint: Constraint, found: "_Compiled | str") -> None:
        """Keep a constraint, and drop the earliest compiled ones beyond the limits."""
        with self._lock:
            self._known.note(constraint, found)
            kept = [(each, one.size_bytes) for each, one in self._known.items() if isinstance(one, _Compiled)]
            excess_bytes = sum(size_bytes for _, size_bytes in kept) - MAX_KEPT_BYTES
            for each, size_bytes in kept:
                if excess_bytes <= 0:
                    break
                self._known.pop(each)
                excess_bytes -= size_bytes


def guide_of(grammars: Grammars | None, sampling: Sampling) -> "Guide | None":
    """Return the guide of a new text, if it has a constraint that can be applied here."""
    if grammars is None or sampling.constraint is None:
        return None
    return grammars.guide(sampling.constraint)


class Guide:
    """The state of one sequence's output in its grammar, and the allowed tokens after it and below it."""

    def __init__(
        self,
        constraint: Constraint,
        tokenizer: "LLTokenizer",
        find: Callable[[], "LLMatcher | None"],
        *,
        fault: str = "",
    ) -> None:
        """Create it; `find` returns a matcher at its beginning, None if there is none yet."""
        self._ends = constraint.ends
        self._stops = frozenset((*constraint.ends, *tokenizer.eos_tokens))
        self._vocab_tokens = tokenizer.vocab_size
        self._find = find
        self._matcher: LLMatcher | None = None
        self._kept = 0
        self._is_over = False
        self.fault = fault
        """The reason why there are no masks any more; "" while there are."""

    def masks(self, output: Sequence[int], paths: Sequence[Tokens]) -> list[Mask | None]:
        """Return the mask after each of some paths below the kept output, which only grows.

        None means that no token is ruled out: after the end of a text, or after tokens that break its grammar.
        Raises `GrammarTooComplex`.
        """
        if self.fault:
            raise GrammarTooComplex(self.fault)
        if self._matcher is None:
            self._matcher = self._find()
        if self._matcher is None:
            return [None] * len(paths)
        self._is_over = self._is_over or not self._consume(self._matcher, output[self._kept :])
        self._kept = len(output)
        masks: list[Mask | None] = [None] * len(paths)
        if not self._is_over:
            self._walk(self._matcher, paths, masks)
        return masks

    def place(self, output: Sequence[int]) -> "GrammarPlace | None":
        """Return the matcher at the end of the output; None if the grammar is missing or no longer applies."""
        try:
            self.masks(output, ())
        except GrammarTooComplex:
            # The next pass reports the sequence.
            return None
        if self._matcher is None or self._is_over:
            return None
        return GrammarPlace(self._matcher, self._stops)

    def _walk(self, matcher: "LLMatcher", paths: Sequence[Tokens], masks: list[Mask | None]) -> None:
        # The matchers on the way to a path, ordered so that each follows its beginnings. Copies take a microsecond,
        # and a rollback may leave a mask of other tokens behind (llguidance 1.9.1).
        above: list[tuple[Tokens, LLMatcher]] = [((), matcher)]
        for place in sorted(range(len(paths)), key=paths.__getitem__):
            path = paths[place]
            while path[: len(above[-1][0])] != above[-1][0]:
                above.pop()
            begun, nearest = above[-1]
            here = nearest.deep_copy()
            if self._consume(here, path[len(begun) :]):
                masks[place] = self._mask(here)
                above.append((path, here))

    def _consume(self, matcher: "LLMatcher", tokens: Sequence[int]) -> bool:
        """Return True if these tokens can follow, and none of them ends the text or is unknown to the tokenizer.

        A model may have more tokens than its tokenizer. A peer may draft one of them, which the matcher would take
        for an error.
        """
        read = list(takewhile(lambda token: token < self._vocab_tokens and token not in self._stops, tokens))
        done = matcher.try_consume_tokens(read) if read else 0
        self._check(matcher)
        return done == len(tokens)

    def _mask(self, matcher: "LLMatcher") -> Mask:
        """Return the mask of the next token."""
        found = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if len(matcher.compute_ff_bytes()) > MAX_FORCED_BYTES:
            self._fail()
        self._check(matcher)
        mask = np.zeros(max(len(found), max(self._ends, default=0) // 8 + 1), np.uint8)
        mask[: len(found)] = found
        _set(mask, self._stops, False)
        if matcher.is_accepting() or not mask.any():
            _set(mask, self._ends, True)
        return mask

    def _check(self, matcher: "LLMatcher") -> None:
        if matcher.is_error():
            self._fail()

    def _fail(self) -> NoReturn:
        self.fault = "The constraint is too complex for the text so far; simplify it."
        raise GrammarTooComplex(self.fault)


class GrammarPlace:
    """An immutable place in a grammar, with its forced tokens and the places after it."""

    __slots__ = ("_matcher", "_stops")

    def __init__(self, matcher: "LLMatcher", stops: frozenset[int]) -> None:
        self._matcher = matcher.deep_copy()
        self._stops = stops

    def forced(self) -> Tokens:
        """The forced tokens as the tokenizer writes them; none if there is a choice.

        Only their text is forced: a model might write the same letters with other tokens.
        """
        return tuple(self._matcher.compute_ff_tokens())

    def begun(self) -> bytes:
        """The forced bytes, which may begin several tokens; empty if there is a choice."""
        return bytes(self._matcher.compute_ff_bytes())

    def after(self, tokens: Sequence[int]) -> "GrammarPlace | None":
        """Return the place after some tokens; None if they cannot follow, or end the text."""
        if not self._stops.isdisjoint(tokens):
            return None
        place = GrammarPlace(self._matcher, self._stops)
        done = place._matcher.try_consume_tokens(list(tokens))
        return place if done == len(tokens) and not place._matcher.is_error() else None


def _set(mask: Mask, tokens: Iterable[int], is_allowed: bool) -> None:
    for token in tokens:
        if token < 8 * len(mask):
            bit = np.uint8(1 << token % 8)
            mask[token // 8] = mask[token // 8] | bit if is_allowed else mask[token // 8] & ~bit
