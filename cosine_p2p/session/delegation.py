"""The coordination of one request from the client's side: the coordinator, and proofs of authorship. Pure."""

from collections.abc import Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Final

from cosine_p2p.session.drafts import Drafts, SignedDraft, SignedNode, is_drafter
from cosine_p2p.session.job import AnnouncedVerifier, Job, Shared
from cosine_p2p.session.upstream import Upstream
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.trust.mandates import Coordination, Mandates
from cosine_protocol.digests import request_digest
from cosine_protocol.draft import MANDATES, MAX_MANDATE_S, WINDOWS, Draft, Fragment, Mandate
from cosine_protocol.errors import BadSignature, RemoteProtocolError
from cosine_protocol.fields import decode_body
from cosine_protocol.identity import check_signature, sign
from cosine_protocol.verify import Credit, Delegate

# With a mandate drafts need not pass through the client, but the verifier spends time on decisions. At T 0.8 it
# brought 1.5 times the speed with the client 1.7 passes away, and 1.04 times a third of a pass away (decision 26).
LEAST_RTT_PASSES: Final = 0.25
LEAST_RTT_S: Final = 0.005  # Round trips on one machine take 1 to 4 ms (measured).
DRAFTER_SILENCE_S: Final = 10.0  # Twice a delegate's wait for a drafter (`cosine_p2p.session.drafters`).


class Coordinator(Enum):
    """The peer that coordinates a request now."""

    UNDECIDED = auto()
    CLIENT = auto()
    VERIFIER = auto()


def may_delegate(mandates: Mandates | None, strategy: StrategyKind, coordination: Coordination) -> bool:
    return mandates is not None and strategy.is_delegable and coordination is not Coordination.CLIENT


def _is_near(rtt_s: float, *, pass_s: float, stages: int) -> bool:
    """Return whether the client can coordinate without loss; with stages a pass begins once the first is free."""
    return rtt_s < max(LEAST_RTT_S, LEAST_RTT_PASSES * pass_s / max(1, stages))


class Delegation:
    """Decides who coordinates a job's drafters, and checks a delegate. `taken_back` is the reason to end it."""

    def __init__(self, job: Job, shared: Shared, d_0: bytes, drafts: Drafts) -> None:
        self._job = job
        self._shared = shared
        self._d_0 = d_0
        self._drafts = drafts
        self._peer_ids = tuple(record.peer_id for record in job.drafters)
        is_open = bool(job.drafters) and may_delegate(shared.mandates, job.strategy, job.coordination)
        self.coordinator = Coordinator.UNDECIDED if is_open else Coordinator.CLIENT
        self.delegate = ""
        self.why = ""
        self.taken_back = ""
        self.was_delegated = False
        self._silent_since_s: float | None = None
        self._tokens = 0
        self._proven_tokens = 0

    def offer(
        self,
        upstream: Upstream,
        announced: AnnouncedVerifier,
        *,
        drafters_may_pay: bool,
        now_s: float,
        left_s: float,
    ) -> Delegate | None:
        """Decide at a verifier, or wait for `Opened`; returns the mandate if the verifier shall coordinate."""
        mandates, link, stages = self._shared.mandates, upstream.link, announced.stages
        if self.coordinator is not Coordinator.UNDECIDED or mandates is None:
            return None
        is_forced = self._job.coordination is Coordination.VERIFIER
        if not upstream.is_opened and (link.features is None or not (link.rtt_s or is_forced)):
            return None
        pass_s = upstream.watch.announced_pass_s or announced.pass_s
        over = f" over {stages} stages" if stages else ""
        delay = f"it is {1e3 * link.rtt_s:.0f} ms away, a pass takes {1e3 * pass_s:.0f} ms{over}"
        if MANDATES not in (link.features or ()):
            self._keep("the verifier knows no mandates")
        elif self._job.prompt_window_tokens and WINDOWS not in (link.features or ()):
            self._keep("the verifier knows no windows of prompts")
        elif link.peer_id in mandates.failures.avoided(now_s):
            self._keep("the verifier made poor use of a mandate lately")
        elif not drafters_may_pay:
            self._keep("drafters do not pay at this verifier")
        elif not is_forced and _is_near(link.rtt_s, pass_s=pass_s, stages=stages):
            self._keep(f"the verifier is near: {delay}")
        else:
            self.coordinator = Coordinator.VERIFIER
            self.delegate = link.peer_id
            self.why = f"the verifier coordinates: {'as you asked' if is_forced else delay}"
            self.was_delegated = True
            self._silent_since_s = now_s
            mandate = Mandate(
                delegate=link.peer_id,
                drafters=self._peer_ids,
                most_tokens=self._job.request.max_new_tokens,
                issued_at_s=mandates.clock(),
                lifetime_s=min(left_s, MAX_MANDATE_S),
                prompt_window_tokens=self._job.prompt_window_tokens,
                shown=request_digest(self._job.shown_request) if self._job.prompt_window_tokens else None,
            )
            return Delegate(upstream.number, sign(mandates.identity, mandate, digest=self._d_0))
        return None

    def take_why(self) -> str:
        why, self.why = self.why, ""
        return why

    def _keep(self, reason: str) -> None:
        self.coordinator, self.why = Coordinator.CLIENT, f"coordinated here: {reason}"

    def note_report(self, author: int, rtt_s: float, *, now_s: float) -> None:
        """Note a delegate's report of a drafter (0: unknown) and its distance."""
        self._silent_since_s = None
        if 0 < author <= len(self._peer_ids):
            self._shared.distances.note_told(self.delegate, self._peer_ids[author - 1], rtt_s, now_s=now_s)

    def note_credit(self, credit: Credit) -> None:
        """Store a fragment from a delegate, to be checked when needed. Raises `RemoteProtocolError`."""
        if not self.was_delegated or credit.author > len(self._peer_ids):
            raise RemoteProtocolError("a credit for an author that was not named")
        signed = SignedDraft(Fragment(credit.body, credit.signature))
        self._drafts.add(credit.author, signed, decode_body(Draft, credit.body))

    def checked_authors(self, authors: bytes, nodes: Sequence[SignedNode | None], *, now_s: float) -> bytes:
        """Return a commit's authors, without those that no signature proves. `nodes` are those of its tokens."""
        if not self.was_delegated:
            return authors
        proven = bytes(
            author if not is_drafter(author) or self._is_signed(author, node) else 0
            for author, node in zip(authors, nodes, strict=True)
        )
        self._tokens += len(authors)
        self._proven_tokens += sum(map(is_drafter, proven))
        if proven != authors and self.coordinator is Coordinator.VERIFIER:
            self._blame("it credited drafters without showing what they signed", now_s)
        return proven

    def _is_signed(self, author: int, node: SignedNode | None) -> bool:
        if node is None:
            return False
        signed, drafter = node.signed, self._peer_ids[author - 1]
        if not signed.is_checked:
            with suppress(BadSignature):
                check_signature(Draft, signed.fragment, author=drafter, digest=self._d_0)
                signed.is_checked = True
        return signed.is_checked

    def check_silence(self, now_s: float) -> None:
        since_s = self._silent_since_s
        is_silent = since_s is not None and now_s - since_s > DRAFTER_SILENCE_S
        if self.coordinator is Coordinator.VERIFIER and is_silent:
            self._blame(f"nothing was heard of drafters for {DRAFTER_SILENCE_S:.0f} s", now_s)

    def _blame(self, reason: str, now_s: float) -> None:
        self.taken_back = reason
        if self._shared.mandates is not None:
            self._shared.mandates.failures.note_failed(self.delegate, now_s=now_s)

    def take_back(self, reason: str) -> None:
        self.coordinator, self.why = Coordinator.CLIENT, f"coordinated here from now on: {reason}"
        self.taken_back = ""

    def lose(self, peer_id: str) -> None:
        if peer_id == self.delegate and self.coordinator is Coordinator.VERIFIER:
            self.coordinator = Coordinator.UNDECIDED

    def end(self, now_s: float) -> None:
        mandates = self._shared.mandates
        if self.coordinator is Coordinator.VERIFIER and mandates is not None:
            mandates.note_use(self.delegate, tokens=self._tokens, drafted=self._proven_tokens, now_s=now_s)
