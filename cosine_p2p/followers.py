"""The drafters of one session: who follows the request, and how much of the stream each was told."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_p2p.link import Delivery, Link, Links
from cosine_protocol import messages as m
from cosine_protocol.errors import PeerLost
from cosine_protocol.limits import MAX_COMMIT_TOKENS
from cosine_protocol.protocols import DRAFT
from cosine_protocol.request import Request

START_TIMEOUT_S: Final = 5.0


@dataclass(slots=True)
class _Follower:
    """`known_tokens` of the output were told to this drafter."""

    link: Link
    known_tokens: int


class Followers:
    """Drafters by author number, 1 + their place in `peer_ids`.

    `output` is the session's own stream, which grows. `hear` gets what the drafters say, and a `Delivery` that is
    lost for each that cannot be reached.
    """

    def __init__(
        self,
        *,
        number: int,
        request: Request,
        peer_ids: Sequence[str],
        links: Links,
        output: Sequence[int],
        hear: Callable[[Delivery], None],
    ) -> None:
        self._number = number
        self._request = request
        self._peer_ids = peer_ids
        self._links = links
        self._output = output
        self._hear = hear
        self._wanted: set[int] = set()
        self._dials: set[asyncio.Task[None]] = set()
        self._followers: dict[int, _Follower] = {}

    def __contains__(self, author: int) -> bool:
        return author in self._followers

    def rtt_s(self, author: int) -> float:
        """Measured round-trip time to a follower."""
        return self._followers[author].link.rtt_s

    def start(self, author: int) -> None:
        """Ask a drafter to follow from here on, unless it follows or is released before it can be reached."""
        self._wanted.add(author)
        dial = asyncio.ensure_future(self._dial(author))
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)

    async def _dial(self, author: int) -> None:
        peer_id = self._peer_ids[author - 1]
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                link = await self._links.get(peer_id, DRAFT)
        except (PeerLost, TimeoutError):
            self._hear(Delivery(peer_id, DRAFT, None, lost="it could not be reached"))
            return
        if author in self._wanted and author not in self._followers:
            link.subscribe(self._number, self._hear)
            self._followers[author] = _Follower(link, len(self._output))
            link.post(m.Start(self._number, self._request, tuple(self._output)))

    def advance(self, author: int, position: int) -> None:
        """Tell a follower the stream up to `position`, from where it was told last.

        A drafter ignores what leaves a gap, and a commit that came while it read the prompt would leave one.
        """
        follower = self._followers.get(author)
        while follower is not None and follower.known_tokens < position:
            end = min(position, follower.known_tokens + MAX_COMMIT_TOKENS)
            tokens = tuple(self._output[follower.known_tokens : end])
            if not follower.link.post(m.Advance(self._number, follower.known_tokens, tokens)):
                return
            follower.known_tokens = end

    def post(self, author: int, message: m.Message) -> None:
        if follower := self._followers.get(author):
            follower.link.post(message)

    def release(self, author: int) -> None:
        """Let a drafter go, also one that was lost or has not started yet."""
        self._wanted.discard(author)
        self.post(author, m.Release(self._number))
        self._followers.pop(author, None)

    async def close(self) -> None:
        """Let everyone go and hear nobody any more."""
        for author in list(self._followers):
            self.release(author)
        for peer_id in self._peer_ids:
            if link := self._links.alive(peer_id, DRAFT):
                link.unsubscribe(self._number)
        for dial in self._dials:
            dial.cancel()
        await asyncio.gather(*self._dials, return_exceptions=True)
