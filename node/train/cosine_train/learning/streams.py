"""Texts that a target has verified, for a drafter to learn from, and their records while they grow. Pure.

Within one request a drafter may be released and started again, by its client or by a coordinating verifier. A
record therefore waits for a while before it is kept.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cosine_node.drafter.observer import NO_GUESS
from cosine_protocol.request import Request, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStream:
    """A text that a target has verified, with the drafter's first choice before each token, if any.

    `prompt` is the part that the drafter received.
    """

    client: str
    sampling: Sampling
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    guesses: tuple[int, ...]


MIN_TOKENS: Final = 8
"""Minimum length of a text that is worth learning from."""
MAX_TOKENS: Final = 8192
"""Bounds memory: of a longer text only the beginning is kept."""
MAX_PROMPT_TOKENS: Final = 4096
"""Bounds memory: the context of small models is not longer."""
RETURN_S: Final = 30.0
"""Within a request a drafter starts again after some commits, each of less than a second."""
MAX_WAITING: Final = 16
"""Bounds memory: records without followers, of up to 0.6 MB each."""


class StreamRecord:
    """The known text of one request, of the tokens committed in order.

    Two followers of the same request write into one record; the second adds missing guesses.
    """

    def __init__(self, request: Request) -> None:
        self.followers = 0
        self.left_at_s = 0.0
        self._client = request.client
        self._sampling = request.sampling
        self._prompt = request.prompt[-MAX_PROMPT_TOKENS:]
        self._tokens = array("i")
        self._guesses = array("i")
        self._is_contradicted = False

    def note(self, position: int, token: int, *, guess: int) -> None:
        """Note the target's token at an output position, and the drafter's guess before it."""
        known = len(self._tokens)
        if position > known or position >= MAX_TOKENS:
            return
        if position == known:
            self._tokens.append(token)
            self._guesses.append(NO_GUESS)
        elif self._tokens[position] != token:
            self._is_contradicted = True
        if self._guesses[position] == NO_GUESS:
            self._guesses[position] = guess

    def stream(self) -> VerifiedStream | None:
        """Return the stream, unless it is too short or its client sent two texts for one request."""
        if self._is_contradicted or len(self._tokens) < MIN_TOKENS:
            return None
        return VerifiedStream(
            client=self._client,
            sampling=self._sampling,
            prompt=self._prompt,
            tokens=tuple(self._tokens),
            guesses=tuple(self._guesses),
        )


class StreamRecords:
    """The records of a drafter's requests, as a `DraftObserver`; `keep` gets each stream that has ended.

    With a `target_digest` only texts of that target are kept.
    """

    def __init__(self, keep: Callable[[VerifiedStream], None], *, target_digest: bytes | None = None) -> None:
        self._keep = keep
        self._target_digest = target_digest
        self._records: dict[tuple[str, bytes], StreamRecord] = {}

    def follow(self, request: Request, d_0: bytes) -> StreamRecord | None:
        """Return the record of a request that is followed now, or again; None if it is not kept."""
        if self._target_digest not in (None, request.target_digest):
            return None
        # The key includes the client, which may send part of a prompt under the digest of another's request.
        record = self._records.setdefault((request.client, d_0), StreamRecord(request))
        record.followers += 1
        return record

    def leave(self, text: StreamRecord, *, now_s: float) -> None:
        """Remove one follower of the request of a record."""
        text.followers -= 1
        text.left_at_s = now_s
        waiting = [one for one in self._records.values() if not one.followers]
        if len(waiting) > MAX_WAITING:
            self._end({min(waiting, key=lambda one: one.left_at_s)})

    def tick(self, *, now_s: float) -> bool:
        """Keep the streams of requests left long ago; return True if there are other records."""
        self._end({one for one in self._records.values() if not one.followers and now_s - one.left_at_s > RETURN_S})
        return bool(self._records)

    def keep_left(self) -> None:
        """Keep the streams of requests without followers; a later follower begins another stream."""
        self._end({record for record in self._records.values() if not record.followers})

    def close(self) -> None:
        """Keep all streams."""
        self._end(set(self._records.values()))

    def _end(self, ended: set[StreamRecord]) -> None:
        """Keep the streams of these records and remove them."""
        self._records = {key: record for key, record in self._records.items() if record not in ended}
        for record in ended:
            if (stream := record.stream()) is not None:
                self._keep(stream)
