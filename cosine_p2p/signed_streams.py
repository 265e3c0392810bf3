"""What the verifiers of one request have signed, each of its own part of the stream, ready to be audited. Pure."""

from collections.abc import Sequence

from cosine_p2p.upstream import Upstream
from cosine_protocol.audit_messages import AskAudit, SignedTranscript, Transcript
from cosine_protocol.codec import decode_body
from cosine_protocol.request import Request


class SignedStreams:
    """The latest transcript of each verifier of a session; one that was asked twice may have two parts."""

    def __init__(self) -> None:
        self._signed: dict[tuple[str, int], SignedTranscript] = {}

    def note(self, upstream: Upstream) -> None:
        """Take in what a verifier has signed by now."""
        if upstream.transcript is not None:
            self._signed[upstream.peer_id, upstream.first] = upstream.transcript

    def claims(self, request: Request, output: Sequence[int]) -> tuple[AskAudit, ...]:
        """One claim for each transcript, in order of time; their numbers are 0 until they are sent."""
        return tuple(
            AskAudit(0, request, tuple(output[: decode_body(Transcript, signed.body).tokens]), author, signed)
            for (author, _), signed in self._signed.items()
        )
