"""A request that a drafter follows."""

import logging
from dataclasses import dataclass

from cosine_node.drafter.draft_tree import DraftTree
from cosine_node.fair_places import IDLE_WANTED_S, Holder
from cosine_node.learning.stream_records import StreamRecord
from cosine_p2p.channel import Channel
from cosine_p2p.request_log import RequestLogger, request_log
from cosine_protocol import messages as m
from cosine_protocol.codec import encode_body
from cosine_protocol.identity import Identity
from cosine_protocol.limits import MAX_NEW_TOKENS
from cosine_protocol.mandate_messages import Mandate
from cosine_protocol.request import Request

LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class FollowedRequest:
    """A request the drafter follows; of two the one with the larger `admission` came later.

    `heard_at_s` is when its client last sent something; or, with a `mandate`, that client's delegate.
    Without a `record` nothing of the text is kept.
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
    record: StreamRecord | None = None
    has_started: bool = False
    sent_fragments: int = 0
    sent_nodes: int = 0

    def holder(self, now_s: float) -> Holder:
        """The request as one that holds a place."""
        return Holder(self.request.client, self.admission, is_idle=now_s - self.heard_at_s > IDLE_WANTED_S)

    def account(self, identity: Identity) -> m.Final:
        """The account of what was sent so far, signed by the drafter."""
        sent_nodes = min(self.sent_nodes, MAX_NEW_TOKENS)
        account = m.Account(
            self.number, m.FinishReason.CANCELLED, self.tree.position, self.tree.digest, (sent_nodes,)
        )
        body = encode_body(account)
        return m.Final(body, identity.sign(kind="final", digest=self.d_0, body=body))

    @property
    def log(self) -> RequestLogger:
        return request_log(LOG, self.d_0, client=self.channel.peer_id)
