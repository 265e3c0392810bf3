"""What the verifiers of one request have signed, each of its own part of the stream. Pure."""

from collections.abc import Iterator, Sequence

from cosine_p2p.upstream import Upstream
from cosine_protocol.audit_messages import AskAudit, Transcript
from cosine_protocol.codec import decode_body
from cosine_protocol.receipt_messages import SignedEarning
from cosine_protocol.request import Request


class SignedStreams:
    """What each verifier of a session signed last; one that was asked twice may have two parts."""

    def __init__(self) -> None:
        self._upstreams: dict[tuple[str, int], Upstream] = {}

    def note(self, upstream: Upstream) -> None:
        """A verifier has committed something."""
        self._upstreams[upstream.peer_id, upstream.first] = upstream

    def parts(self) -> list[tuple[str, int]]:
        """Who committed from which position on, in order of time."""
        return list(self._upstreams)

    def claims(self, request: Request, output: Sequence[int]) -> tuple[AskAudit, ...]:
        """One claim for each transcript, in order of time; their numbers are 0 until they are sent."""
        return tuple(
            AskAudit(0, request, tuple(output[: decode_body(Transcript, signed.body).tokens]), author, signed)
            for (author, _), upstream in self._upstreams.items()
            if (signed := upstream.transcript) is not None
        )

    def earned(self) -> Iterator[tuple[str, SignedEarning]]:
        """The accounts of what drafters have earned, each with its verifier's peer id; nothing is checked yet."""
        for (verifier, _), upstream in self._upstreams.items():
            yield from ((verifier, signed) for signed in upstream.earned)
