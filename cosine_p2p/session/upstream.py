"""The state of one verifier in a session, with the checks that its commits continue the stream. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_p2p.session.stall import SLOW_AFTER_S, Watch
from cosine_p2p.transport.link import PeerLink
from cosine_p2p.trust.peer_memory import PeerSpeeds
from cosine_protocol.audit import AskAudit
from cosine_protocol.digests import roll_digest
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.fields import decode_body
from cosine_protocol.identity import Signed, check_signature, open_signed
from cosine_protocol.request import Request
from cosine_protocol.stream import Account, FinishReason
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import (
    FORCED_AUTHOR,
    HOME_AUTHOR,
    Commit,
    Likelihood,
    LikelihoodDigest,
    PromptLikelihoods,
    Transcript,
    check_likelihood,
    is_transcript_due,
)

LEAST_COMMITS: Final = 4  # With fewer commits one pass shared with a prompt would distort the mean.


@dataclass(frozen=True, slots=True)
class Tokens:
    """Committed tokens with `authors` as in a `Commit`, and `confidences` if known; `round` counts from 1."""

    tokens: tuple[int, ...]
    authors: bytes
    likelihoods: tuple[Likelihood, ...] = ()
    confidences: tuple[float | None, ...] = ()
    round: int = 0


@dataclass(slots=True)
class Upstream:
    """A verifier that serves the request under `number`, `position` tokens into the stream.

    It received the tokens before `first` from the client. `transcript` is the last one that it signed,
    `is_unsigned` is true once a due one is missing. `told` has all its likelihoods, those of the prompt first.
    """

    number: int
    link: PeerLink
    request: Request
    d_0: bytes
    digest: bytes
    position: int
    watch: Watch
    is_opened: bool = False
    is_ended: bool = False
    transcript: Signed[Transcript] | None = None
    is_unsigned: bool = False
    tells_prompt: bool = False
    told: list[Likelihood] = field(default_factory=list)
    first: int = field(init=False)
    _digest_told: LikelihoodDigest = field(default_factory=LikelihoodDigest)

    def __post_init__(self) -> None:
        self.first = self.position

    @property
    def peer_id(self) -> str:
        return self.link.peer_id

    def note_pace(self, speeds: PeerSpeeds, now_s: float) -> None:
        watch = self.watch
        pass_s = watch.pass_s(now_s)
        if pass_s is not None and (watch.commits > LEAST_COMMITS or watch.waited_s > SLOW_AFTER_S):
            speeds.note_pass(self.peer_id, pass_s, now_s=now_s)
        if watch.commits:
            prefill_s = max(0.0, watch.first_commit_s - self.link.rtt_s)
            speeds.note_prefill(self.peer_id, prefill_s / watch.prompt_tokens, now_s=now_s)

    @property
    def prompt_told(self) -> int:
        return len(self.request.prompt) - 1 if self.tells_prompt else 0

    def take_prompt_likelihoods(self, message: PromptLikelihoods) -> None:
        """Raises `RemoteProtocolError`."""
        first = message.position
        follows = self.is_opened and first == len(self.told) + 1 and self.position == self.first
        if not follows or len(self.told) + len(message.likelihoods) > self.prompt_told:
            raise RemoteProtocolError("log-probabilities of the prompt do not fit it")
        self._take_told(self.request.prompt[first : first + len(message.likelihoods)], message.likelihoods)

    def _take_told(self, tokens: Sequence[int], likelihoods: Sequence[Likelihood]) -> None:
        asked = self.request.logprobs
        if asked is None or len(likelihoods) != len(tokens):
            raise RemoteProtocolError("log-probabilities do not fit the tokens")
        for token, told in zip(tokens, likelihoods, strict=True):
            check_likelihood(told, token, top=asked.top)
        self.told += likelihoods
        self._digest_told.add(likelihoods)

    def take(self, commit: Commit, *, authors: int) -> None:
        """Check that a commit continues the stream. Raises `RemoteProtocolError` or `BadSignature`."""
        if not self.is_opened:
            raise RemoteProtocolError("a commit came before the request was opened")
        if commit.position != self.position or not commit.tokens:
            raise RemoteProtocolError("a commit does not continue the stream")
        own = (HOME_AUTHOR, FORCED_AUTHOR)
        has_strange_author = any(author > authors and author not in own for author in commit.authors)
        if len(commit.authors) != len(commit.tokens) or has_strange_author:
            raise RemoteProtocolError("a commit's authors do not fit its tokens")
        if self.position + len(commit.tokens) > self.request.max_new_tokens:
            raise RemoteProtocolError("a commit exceeds the requested length")
        if roll_digest(self.digest, commit.tokens) != commit.digest:
            raise RemoteProtocolError("a commit's digest does not follow from its tokens")
        if self.is_ended or any(token in self.request.eos for token in commit.tokens[:-1]):
            raise RemoteProtocolError("a commit goes past the end of the stream")
        if self.request.logprobs is not None:
            if len(self.told) < self.prompt_told:
                raise RemoteProtocolError("a commit came before all log-probabilities of the prompt")
            self._take_told(commit.tokens, commit.likelihoods or ())
        self._take_transcript(commit)
        self.position += len(commit.tokens)
        self.digest = commit.digest
        self.is_ended = commit.tokens[-1] in self.request.eos

    def _take_transcript(self, commit: Commit) -> None:
        after, signed = self.position + len(commit.tokens), commit.transcript
        if signed is None:
            has_ended = commit.tokens[-1] in self.request.eos or after == self.request.max_new_tokens
            self.is_unsigned |= is_transcript_due(before=self.position, after=after, has_ended=has_ended)
            return
        transcript = open_signed(Transcript, signed, author=self.peer_id, digest=self.d_0)
        told = None if self.request.logprobs is None else self._digest_told.digest()
        if transcript != Transcript(self.first, after, commit.digest, told):
            raise RemoteProtocolError("a transcript is not that of the stream")
        self.transcript = signed

    def finish(self, final: FinalMessage, account: Account, output: list[int]) -> FinishReason:
        """Check the signed end and return its reason. Raises `BadSignature` or `RemoteProtocolError`."""
        check_signature(Account, final, author=self.peer_id, digest=self.d_0)
        reason = end_of(output, self.request)
        if reason is None or account.digest != self.digest or self.position != len(output):
            raise RemoteProtocolError("the verifier ended the stream before its end")
        return reason


def end_of(output: list[int], request: Request) -> FinishReason | None:
    """Return the reason why an output is complete, None if it is not."""
    if output and output[-1] in request.eos:
        return FinishReason.EOS
    return FinishReason.LENGTH if len(output) == request.max_new_tokens else None


class SignedStreams:
    """The last transcript of each verifier of a session; one that was asked twice may have two parts."""

    def __init__(self) -> None:
        self._upstreams: dict[tuple[str, int], Upstream] = {}

    def note(self, upstream: Upstream) -> None:
        self._upstreams[upstream.peer_id, upstream.first] = upstream

    def parts(self) -> list[tuple[str, int]]:
        """Return verifiers and the position from which each committed, in order of time."""
        return list(self._upstreams)

    def claims(self, request: Request, output: Sequence[int]) -> tuple[AskAudit, ...]:
        """Return a claim for each transcript, in order of time, with the number 0."""
        return tuple(
            _claim(upstream, signed, request, output)
            for upstream in self._upstreams.values()
            if (signed := upstream.transcript) is not None
        )


def _claim(upstream: Upstream, signed: Signed[Transcript], request: Request, output: Sequence[int]) -> AskAudit:
    tokens = decode_body(Transcript, signed.body).tokens
    told = None
    if request.logprobs is not None:
        told = tuple(upstream.told[: upstream.prompt_told + tokens - upstream.first])
    return AskAudit(0, request, tuple(output[:tokens]), upstream.peer_id, signed, told)
