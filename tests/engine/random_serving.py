"""Requests served as by a verifier, with all other conditions drawn at random."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from cosine_engine.base import PREFIX, Engine, Row
from cosine_protocol.request import Sampling, Shaping, TokenBias

Position = tuple[int, float]
"""A token and its margin: margins show a difference long before tokens do."""


@dataclass(slots=True)
class Asked:
    """A request: drafts are made of `expected`, its correct output, and of tokens below `drafted_below`."""

    prompt: list[int]
    sampling: Sampling
    expected: list[Position] = field(default_factory=list)
    drafted_below: int = 100


def draw_requests(count: int, *, vocab_tokens: int, longest: int, seed: int, is_shaped: bool = True) -> list[Asked]:
    """Return prompts of random tokens, some with equal beginnings, half of them sampled, a third shaped or none."""
    rng = random.Random(seed)
    common = [rng.randrange(3, vocab_tokens) for _ in range(longest // 2)]
    asked = []
    for number in range(count):
        prompt = [rng.randrange(3, vocab_tokens) for _ in range(rng.randint(2, longest // 2))]
        shaping = draw_shaping(rng, vocab_tokens=vocab_tokens) if is_shaped and number % 3 == 2 else None
        sampling = Sampling(temperature=0.8 * (number % 2), top_p=0.95, seed=number, shaping=shaping)
        asked.append(Asked(common + prompt if number % 3 == 0 else prompt, sampling))
    return asked


def draw_shaping(rng: random.Random, *, vocab_tokens: int) -> Shaping:
    """Return all score shaping at once, about enough tokens to matter."""
    some = rng.sample(range(vocab_tokens), min(vocab_tokens // 2, 200))
    return Shaping(
        presence_penalty=rng.choice((0.0, 0.7, -1.0)),
        frequency_penalty=rng.choice((0.3, -0.2)),
        logit_bias=tuple(TokenBias(token, rng.uniform(-3, 3)) for token in some[:20]),
        bad_words=tuple((token,) for token in some[20:24]) + tuple(zip(some[24:], some, strict=False)),
        min_tokens=rng.randrange(9),
        held_back=tuple(some[:3]),
    )


def serve_alone(engine: Engine, asked: Asked, tokens: int) -> list[Position]:
    """Decode plainly, one request at a time, with its prompt in one pass."""
    sequence = engine.open(sampling=asked.sampling, prompt_tokens=len(asked.prompt))
    fed, found = asked.prompt, list[Position]()
    while len(found) < tokens:
        row = Row.chain(sequence, fed, scored_from=len(fed) - 1)
        [choice] = engine.forward([row])[0].choices
        engine.keep(sequence, row.nodes)
        found.append((choice.token, choice.margin))
        fed = [choice.token]
    engine.release(sequence)
    return found


class _Request:
    def __init__(self, engine: Engine, asked: Asked, rng: random.Random) -> None:
        self._engine = engine
        self._asked = asked
        self._rng = rng
        self.found: list[Position] = []
        self._open()
        self._scores_prefill = True

    def _open(self) -> None:
        self._sequence = self._engine.open(
            sampling=self._asked.sampling, prompt_tokens=len(self._asked.prompt), scope="all"
        )
        self._fed = 0

    @property
    def _output(self) -> list[int]:
        return [token for token, _ in self.found]

    def lose(self, *, is_failover: bool) -> None:
        """Release its pages. After a failover all committed tokens are prefilled, with scores; else all but one."""
        self.end()
        self._open()
        self._scores_prefill = is_failover or not self.found

    def end(self) -> None:
        self._engine.release(self._sequence)

    def row(self) -> Row:
        """Return its row in the next pass: a piece of its prefix, or its last token with a random tree below it."""
        known = self._asked.prompt + self._output
        if not self._scores_prefill:
            known = known[:-1]
        if not self._fed:
            self._fed = self._engine.reuse_prefix(self._sequence, known)
        if self._fed < len(known):
            piece = known[self._fed : self._fed + self._rng.choice((1, 3, 16, 200))]
            is_last = self._fed + len(piece) == len(known)
            return Row.chain(self._sequence, piece, scored_from=len(piece) - (is_last and self._scores_prefill))
        coming = [token for token, _ in self._asked.expected[len(self.found) :]]
        depth_of = {0: 0}
        tokens, parents = [self._output[-1]], [PREFIX]
        for name in range(1, self._rng.choice((1, 1, 2, 5, 12))):
            parent = self._rng.choice([*depth_of, name - 1])
            depth = depth_of[name] = depth_of[parent] + 1
            is_right = depth <= len(coming) and self._rng.random() < 0.6
            tokens.append(coming[depth - 1] if is_right else self._rng.randrange(3, self._asked.drafted_below))
            parents.append(parent)
        return Row(self._sequence, tuple(tokens), tuple(range(len(tokens))), tuple(parents))

    def take(self, row: Row, choices: Sequence[Position]) -> None:
        """Note the result of its row: the target's tokens as far as they were drafted, and one more."""
        if self._fed < len(self._asked.prompt) + len(self.found) - (not self._scores_prefill):
            self._fed += len(row.tokens)
            self._engine.keep(self._sequence, row.nodes)
            self.found += choices
        else:
            path = [0]
            self.found.append(choices[0])
            while len(self.found) < len(self._asked.expected):
                following = [
                    name
                    for name in row.nodes
                    if row.parents[name] == path[-1] and row.tokens[name] == self.found[-1][0]
                ]
                if not following:
                    break
                path.append(following[0])
                self.found.append(choices[following[0]])
            self._engine.keep(self._sequence, path)
            self._engine.prune(self._sequence, row.nodes)
            self._fed += len(path)
        if choices:
            self._scores_prefill = False


def is_as_expected(found: Sequence[Position], expected: Sequence[Position], *, tolerance: float) -> bool:
    """Return True if positions begin a text: the same tokens, with margins within a tolerance."""
    return all(
        # Two infinite margins are equal, and have no difference.
        token == wanted and (margin == wanted_margin or abs(margin - wanted_margin) <= tolerance)
        for (token, margin), (wanted, wanted_margin) in zip(found, expected, strict=False)
    )


def serve_together(
    engine: Engine, requests: Sequence[Asked], *, at_once: int, seed: int, tolerance: float = 0.0
) -> int:
    """Serve requests with known outputs; return the number of those with any other output."""
    rng = random.Random(seed)
    waiting = list(requests)
    active: list[tuple[Asked, _Request]] = []
    different = 0
    while waiting or active:
        while waiting and len(active) < at_once:
            asked = waiting.pop()
            active.append((asked, _Request(engine, asked, rng)))
        chosen = rng.sample(active, rng.randint(1, len(active)))
        rows = [request.row() for _, request in chosen]
        for (_, request), row, result in zip(chosen, rows, engine.forward(rows), strict=True):
            request.take(row, [(choice.token, choice.margin) for choice in result.choices])
        for asked, request in chosen:
            # After a difference its drafts and inputs are of another text.
            is_wrong = not is_as_expected(request.found, asked.expected, tolerance=tolerance)
            if is_wrong or len(request.found) >= len(asked.expected):
                different += is_wrong
                active.remove((asked, request))
                request.end()
            elif rng.random() < 0.05:
                request.lose(is_failover=rng.random() < 0.5)
    return different
