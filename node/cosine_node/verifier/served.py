"""The requests a verifier serves now, in order of admission."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from cosine_node.verifier.request import Stage, VerifierRequest
from cosine_p2p.channel import MAX_SENTENCE, Channel
from cosine_p2p.request_log import RequestLogger, request_log
from cosine_protocol import messages as m
from cosine_protocol.errors import CosineError, ErrorCode, PeerError

LOG = logging.getLogger(__name__)
Key = tuple[Channel, int]


@dataclass(slots=True)
class Served:
    """A request together with the channel it is answered on."""

    channel: Channel
    state: VerifierRequest

    @property
    def key(self) -> Key:
        return self.channel, self.state.number

    @property
    def log(self) -> RequestLogger:
        return request_log(LOG, self.state.d_0, client=self.channel.peer_id)

    def refuse(self, error: CosineError) -> None:
        """Tell the client why its request fails; anything but a `PeerError` is the model's fault."""
        code = error.code if isinstance(error, PeerError) else ErrorCode.BAD_LOGITS
        retry_after_s = error.retry_after_s if isinstance(error, PeerError) else None
        self.channel.post(m.Error(self.state.number, code, str(error)[:MAX_SENTENCE], retry_after_s))


class ServedRequests:
    """Requests by channel and number; iterates over them, the oldest first."""

    def __init__(self) -> None:
        self._served: dict[Key, Served] = {}

    def __len__(self) -> int:
        return len(self._served)

    def __iter__(self) -> Iterator[Served]:
        return iter(list(self._served.values()))

    def __contains__(self, served: Served) -> bool:
        return self._served.get(served.key) is served

    def get(self, channel: Channel, number: int) -> Served | None:
        return self._served.get((channel, number))

    def add(self, served: Served) -> None:
        self._served[served.key] = served

    def remove(self, served: Served) -> bool:
        """False if it was not there any more."""
        return self._served.pop(served.key, None) is not None

    @property
    def active(self) -> list[Served]:
        """Those that can use a pass."""
        return [served for served in self if served.state.stage is not Stage.AWAIT_VERIFY]
