"""The requests of a drafter, and the rows of its next pass: round robin, within the shares of clients."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cosine_engine.base import Engine, OutOfPages, Row
from cosine_engine.curve import CostCurve
from cosine_node.drafter.draft_tree import DraftTree
from cosine_node.passes.fair_pass import CrowdDebt, Shares
from cosine_p2p.fair_places import User
from cosine_p2p.session.request_log import RequestLogger
from cosine_p2p.transport.channel import Channel
from cosine_protocol.draft import Mandate
from cosine_protocol.request import Request

LOG = logging.getLogger(__name__)
IDLE_S: Final = 2.0
"""Drafting pauses after this time without a message of the client, which sends one with every commit."""
BUDGET_TOKENS: Final = 32
"""Maximum tokens of a pass: 32 take 1.65 times as long as one (drafter curve of the profile 60/6)."""


@dataclass(slots=True, eq=False)
class FollowedRequest:
    """A request that the drafter follows.

    heard_at_s: Time of the last message of its client or, with a `mandate`, of the delegate.
    admission: Sequence number of the requests.
    """

    channel: Channel
    number: int
    request: Request
    d_0: bytes
    tree: DraftTree
    sequence: int
    heard_at_s: float
    admission: int = 0
    mandate: Mandate | None = None
    has_started: bool = False
    sent_fragments: int = 0
    sent_nodes: int = 0

    @property
    def log(self) -> RequestLogger:
        return RequestLogger(LOG, self.d_0, client=self.channel.peer_id)


Rows = list[tuple[FollowedRequest, Row]]


class DraftRows:
    """Chooses the rows of a drafter's passes, and remembers the tokens and clients of the last one."""

    def __init__(self, engine: Engine, curve: CostCurve) -> None:
        self._engine = engine
        self._debt = CrowdDebt(curve)
        self._tokens = 0
        self._crowd_tokens = 0
        self._clients = 0
        self._has_crowd = False
        self._is_full = False

    def next_rows(self, followed: Iterable[FollowedRequest], *, now_s: float) -> tuple[Rows, list[FollowedRequest]]:
        """The rows of the next pass within its budget, with pages reserved, and the requests without free pages.

        `followed` are in round-robin order. Each client has an equal share of requests; the crowd of further ones
        comes last, if it has no debt (`fair_pass`).
        """
        heard = [one for one in followed if now_s - one.heard_at_s <= IDLE_S]
        shares = Shares(User(one.request.client) for one in heard)
        crowd: list[FollowedRequest] = []
        rows: Rows = []
        unfit: list[FollowedRequest] = []
        self._tokens, self._is_full = 0, False
        for one in heard:
            user = User(one.request.client)
            if not shares.has(user):
                crowd.append(one)
            elif self._add(one, rows, unfit):
                shares.take(user)
        self._clients = len({one.request.client for one, _ in rows})
        self._has_crowd = bool(crowd)
        own_tokens = self._tokens
        for one in crowd if not rows or self._debt.may_join else ():
            self._add(one, rows, unfit)
        self._crowd_tokens = self._tokens - own_tokens
        return rows, unfit

    def note_pass(self, *, elapsed_s: float) -> None:
        """Note the duration of the pass over the last rows, with the work around it."""
        if self._has_crowd and self._clients:
            self._debt.note_pass(
                tokens=self._tokens, crowd_tokens=self._crowd_tokens, users=self._clients, elapsed_s=elapsed_s
            )

    def _add(self, followed: FollowedRequest, rows: Rows, unfit: list[FollowedRequest]) -> bool:
        """Add the row of a request; False for a full pass or context, or nothing to draft."""
        if self._is_full:
            return False
        self._engine.prune(followed.sequence, followed.tree.take_dropped())
        self._engine.keep(followed.sequence, followed.tree.take_kept())
        row = followed.tree.plan(followed.sequence)
        if row is None or followed.tree.tokens_fed_after(row) > self._engine.context_tokens:
            return False
        if self._tokens and self._tokens + len(row.tokens) > BUDGET_TOKENS:
            self._is_full = True
            return False
        try:
            self._engine.reserve(followed.sequence, len(row.tokens))
        except OutOfPages:
            unfit.append(followed)
            return False
        self._tokens += len(row.tokens)
        rows.append((followed, row))
        return True
