"""One verifier as a session sees it: what it has committed, whether it still makes progress."""

from dataclasses import dataclass
from typing import Final

from cosine_p2p.link import Link
from cosine_protocol import messages as m
from cosine_protocol.digests import roll_digest
from cosine_protocol.errors import PeerLost, RemoteProtocolError
from cosine_protocol.identity import verify
from cosine_protocol.limits import HOME_AUTHOR
from cosine_protocol.messages import FinishReason
from cosine_protocol.request import Request

STALL_S: Final = 4.0
"""A choice: a verifier that shows no step for so long stalls, unless its own passes are that long."""
STALL_PASSES: Final = 5
"""A choice: passes that a verifier may take without showing a step."""


@dataclass(slots=True)
class Watch:
    """The time since which a verifier has shown no progress, and whether it owes any."""

    since_s: float
    pass_s: float = 0.0
    mark: tuple[int, int, int] = (0, 0, 0)
    is_waiting: bool = True
    is_prefilling: bool = True

    def expect(self, now_s: float) -> None:
        """The verifier owes us an answer from now on; before, its silence was ours."""
        if not self.is_waiting:
            self.is_waiting, self.since_s = True, now_s

    def settle(self, now_s: float, *, owes_more: bool) -> None:
        """The verifier has committed."""
        self.is_prefilling = False
        self.is_waiting = owes_more
        self.since_s = now_s


@dataclass(slots=True)
class Upstream:
    """A verifier that serves the request in slot `slot`, `position` tokens into the stream."""

    slot: int
    link: Link
    request: Request
    d_0: bytes
    digest: bytes
    position: int
    watch: Watch
    is_opened: bool = False

    @property
    def peer_id(self) -> str:
        return self.link.channel.peer_id

    def check_progress(self, now_s: float) -> None:
        """Raise `PeerLost` if a verifier that owes us something shows no steps."""
        watch = self.watch
        if not watch.is_waiting:
            return
        progress = self.link.channel.remote_progress
        mark = (progress.steps, progress.prefill_tokens, self.position)
        if mark != watch.mark:
            watch.mark, watch.since_s = mark, now_s
        limit_s = max(STALL_S, STALL_PASSES * watch.pass_s)
        if watch.is_prefilling:
            limit_s = max(limit_s, watch.pass_s * (len(self.request.prompt) + self.position))
        if now_s - watch.since_s > limit_s:
            raise PeerLost(self.peer_id, f"it made no progress for {limit_s:.0f} s")

    def take(self, commit: m.Commit | m.Verified, output: list[int], *, authors: int) -> tuple[int, ...]:
        """Check a commit against this verifier's account of the stream; returns what `output` lacks of it.

        Raises `RemoteProtocolError` for a commit that does not fit its own stream or what others committed.
        """
        self._check(commit, authors)
        ended = self.position and output[self.position - 1] in self.request.eos
        if ended or any(token in self.request.eos for token in commit.tokens[:-1]):
            raise RemoteProtocolError("a commit goes past the end of the stream")
        known = len(output) - commit.position
        if tuple(output[commit.position : commit.position + len(commit.tokens)]) != commit.tokens[:known]:
            raise RemoteProtocolError("a commit contradicts what another verifier committed")
        self.position += len(commit.tokens)
        self.digest = commit.digest
        return commit.tokens[known:]

    def _check(self, commit: m.Commit | m.Verified, authors: int) -> None:
        if not self.is_opened:
            raise RemoteProtocolError("a commit came before the request was opened")
        if commit.position != self.position or not commit.tokens:
            raise RemoteProtocolError("a commit does not continue the stream")
        has_strange_author = any(author > authors and author != HOME_AUTHOR for author in commit.authors)
        if len(commit.authors) != len(commit.tokens) or has_strange_author:
            raise RemoteProtocolError("a commit's authors do not fit its tokens")
        if self.position + len(commit.tokens) > self.request.max_new_tokens:
            raise RemoteProtocolError("a commit goes past the length asked for")
        if roll_digest(self.digest, commit.tokens) != commit.digest:
            raise RemoteProtocolError("a commit's digest does not follow from its tokens")

    def finish(self, final: m.Final, account: m.Account, output: list[int]) -> FinishReason:
        """Take the verifier's signed end of the stream. The reason is checked against the tokens themselves.

        Raises `BadSignature` or `RemoteProtocolError`.
        """
        verify(kind="final", signer=self.peer_id, digest=self.d_0, body=final.body, signature=final.signature)
        reason = end_of(output, self.request)
        if reason is None or account.digest != self.digest or self.position != len(output):
            raise RemoteProtocolError("the verifier ended the stream before its end")
        return reason


def end_of(output: list[int], request: Request) -> FinishReason | None:
    """The reason why an output is complete, None if it is not."""
    if output and output[-1] in request.eos:
        return FinishReason.EOS
    return FinishReason.LENGTH if len(output) == request.max_new_tokens else None
