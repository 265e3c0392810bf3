"""Ours: several drafters run ahead, their drafts are fused into one live tree, the verifier never waits.

Every drafter follows each commit and keeps growing its own tree; what it sends is weighed against the others
(`speculation.fusion`) and forwarded at once where it is likely enough to be worth a place in a pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cosine_p2p.routing.base import DrafterFacts, Round
from cosine_p2p.routing.hedge import HedgeRouter
from cosine_p2p.speculation.corrections import likely_corrections
from cosine_p2p.speculation.fusion import FusedView, Fusion
from cosine_p2p.speculation.latency_model import DraftPlan, is_close, plan_drafts
from cosine_p2p.speculation.tree import LiveTree
from cosine_p2p.strategies.base import (
    Action,
    Committed,
    Drafted,
    DrafterLost,
    DrafterStarted,
    Event,
    Opened,
    RecallDrafter,
    ReleaseDrafter,
    SendAdvance,
    SendAssign,
)
from cosine_p2p.strategies.forwarding import Forwarder
from cosine_p2p.strategies.pace import Pace

SILENT_TOKENS: Final = 8
TRIAL_TOKENS: Final = 8
MIN_WEIGHT: Final = 0.03
PREDRAFT_WEIGHT: Final = 0.25
MAIN_LINE_TURNS: Final = 4
SENTENCE_TOKENS: Final = 24
REST_TOKENS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineOptions:
    """Parts of the strategy, each of which can be switched off to see what it brings.

    At most `drafters` draft at once. `recalls` lets released drafters come back for a trial, or when the request
    changes its subject. With `predrafts` drafters beside the best draft below likely corrections of its main line.
    With `controls` depth, width and window follow from the latency model, which may also send all drafters away.
    """

    drafters: int = 3
    controls: bool = True
    depth_tokens: int = 24
    width_nodes: int = 8
    window_nodes: int = 256
    recalls: bool = True
    predrafts: bool = True

    @property
    def plan(self) -> DraftPlan:
        """How drafters draft until something was measured."""
        return DraftPlan(
            depth_tokens=self.depth_tokens,
            width_nodes=self.width_nodes,
            window_nodes=self.window_nodes,
            gain=1.0,
            why="as configured",
        )


class Cosine:
    """Cooperative speculation. Which drafters stay is decided by how well they predicted this request."""

    def __init__(self, root: bytes, position: int = 0, options: CosineOptions | None = None) -> None:
        self._options = options or CosineOptions()
        self._tree = LiveTree(root, position)
        self._fusion = Fusion()
        self._router = HedgeRouter()
        self._forwarder = Forwarder(self._tree)
        self._facts: dict[int, DrafterFacts] = {}
        self._active: set[int] = set()
        self._recalled: set[int] = set()
        self._unheard: set[int] = set()
        self._muted: dict[int, int] = {}
        self._naps_tokens: dict[int, int] = {}
        self._silent_tokens: dict[int, int] = {}
        self._is_open = False
        self._seen_tokens = 0
        self._turns = 0
        self._pace = Pace()
        self._plan = self._options.plan
        self._back_at_tokens: int | None = None

    def on(self, event: Event, now_s: float) -> list[Action]:
        del now_s
        match event:
            case Opened():
                self._is_open = True
                self._pace.open(event)
                self._forwarder.forget()
                return self._forward_all()
            case DrafterStarted():
                return self._start(event)
            case DrafterLost(author):
                self._lose(author)
                return self._reroute()
            case Drafted(author, draft):
                authors = [author] * len(draft.nodes)
                touched = self._tree.attach(draft.base, draft.position, draft.nodes, authors)
                return list(self._forwarder.blocks(self._view(), touched)) if self._is_open else []
            case Committed():
                return self._commit(event)
            case _:
                return []

    def weights(self) -> dict[int, float]:
        """Present weight of every author that drafts, for people; they sum to 1."""
        weights = self._router.weights()
        total = sum(weights[author] for author in self._active)
        return {author: weights[author] / total for author in sorted(self._active)}

    def _view(self) -> FusedView:
        return self._fusion.view(self._tree, self._router.weights())

    def _forward_all(self) -> list[Action]:
        if not self._is_open:
            return []
        return list(self._forwarder.blocks(self._view(), list(self._tree.walk())))

    def _start(self, drafter: DrafterStarted) -> list[Action]:
        facts = DrafterFacts(prompt_nll=drafter.prompt_nll, token_s=drafter.token_s, rtt_s=drafter.rtt_s)
        self._facts[drafter.author] = facts
        self._router.join(drafter.author, facts)
        if drafter.author in self._recalled:
            self._recalled.discard(drafter.author)
            self._unheard.add(drafter.author)
        self._muted.pop(drafter.author, None)
        self._active.add(drafter.author)
        self._silent_tokens[drafter.author] = 0
        why = f"prompt likelihood {drafter.prompt_nll:.2f} nats a token, RTT {1e3 * drafter.rtt_s:.0f} ms"
        assign = self._assign(drafter.author, (), why)
        rerouted = self._reroute()
        return [assign, *rerouted] if drafter.author in self._active else rerouted

    def _assign(self, author: int, guess: tuple[int, ...], why: str) -> SendAssign:
        plan = self._plan
        return SendAssign(
            author,
            self._tree.root.digest,
            self._tree.position,
            guess,
            plan.depth_tokens,
            plan.width_nodes,
            plan.window_nodes,
            why,
        )

    def _spread(self) -> list[Action]:
        """Send drafters beside the best to the likeliest corrections, every fourth turn back to the main line."""
        weights = self._router.weights()
        beside = [author for author in self._ranked()[1:] if weights[author] >= PREDRAFT_WEIGHT]
        if not (self._options.predrafts and beside):
            return []
        self._turns += 1
        if self._turns % MAIN_LINE_TURNS == 0:
            return [self._assign(author, (), "its turn on the main line") for author in beside]
        corrections = likely_corrections(self._tree, self._view(), len(beside))
        return [
            self._assign(
                author, guess, f"pre-draft what follows if {len(guess) - 1} tokens hold and the next does not"
            )
            for author, guess in zip(beside, corrections, strict=False)
        ]

    def _control(self) -> list[Action]:
        """Follow the latency model: other depths and widths, nobody at all, or after a while somebody again."""
        if not self._options.controls or self._seen_tokens < TRIAL_TOKENS:
            return []
        if self._back_at_tokens is not None:
            return self._come_back()
        leader = next(iter(self._ranked()), None)
        if leader is None:
            return []
        plan = plan_drafts(self._pace.latencies(self._facts[leader]), acceptance=self._pace.acceptance)
        if not plan.depth_tokens and self._seen_tokens >= SENTENCE_TOKENS:
            self._back_at_tokens = self._seen_tokens + REST_TOKENS
            gone, self._active = sorted(self._active), set()
            return [ReleaseDrafter(author, plan.why) for author in gone]
        if not plan.depth_tokens or is_close(plan, self._plan):
            return []
        self._plan = plan
        return [self._assign(author, (), plan.why) for author in sorted(self._active)]

    def _come_back(self) -> list[Action]:
        """After a rest the best is asked again: it, the network or the text may have changed."""
        if self._seen_tokens < (self._back_at_tokens or 0):
            return []
        self._back_at_tokens = None
        self._pace.forget_acceptance()
        return []

    def _ranked(self) -> list[int]:
        weights = self._router.weights()
        return sorted(self._active, key=lambda author: (-weights[author], author))

    def _lose(self, author: int) -> None:
        self._router.leave(author)
        for authors in (self._active, self._recalled, self._unheard):
            authors.discard(author)
        for known in (self._facts, self._muted, self._naps_tokens):
            known.pop(author, None)

    def _commit(self, event: Committed) -> list[Action]:
        spoken = self._fusion.learn(self._tree, event.tokens)
        self._router.learn(self._round(spoken))
        self._note_silence(spoken)
        self._tree.advance(event.tokens)
        self._forwarder.prune()
        self._seen_tokens += len(event.tokens)
        self._pace.note(event.stats, spoken)
        advances = [SendAdvance(author, event.position, event.tokens) for author in sorted(self._active)]
        # What was too unlikely to send under the old root may be likely under the new one.
        return [*advances, *self._control(), *self._reroute(), *self._forward_all(), *self._spread()]

    def _round(self, spoken: tuple[Mapping[int, float], ...]) -> Round:
        return Round(authors=frozenset(author for said in spoken for author in said), likelihoods=spoken)

    def _note_silence(self, spoken: tuple[Mapping[int, float], ...]) -> None:
        for said in spoken:
            self._unheard -= said.keys()
            for author in said:
                self._naps_tokens.pop(author, None)
            for author in self._active if said else ():
                self._silent_tokens[author] = 0 if author in said else self._silent_tokens[author] + 1

    def _reroute(self) -> list[Action]:
        """Let those draft whom the router picks, and those recalled until they were heard.

        At first only their word counts, the likelihood of the prompt. With evidence whoever has a weight near zero
        goes; who says nothing that others have not said before goes too, each time for twice as long.
        """
        if self._back_at_tokens is not None:
            return []
        actions: list[Action] = []
        for author in sorted(self._active):
            if self._silent_tokens[author] >= SILENT_TOKENS:
                self._mute(author)
                actions.append(self._release(author, f"it said nothing new for {SILENT_TOKENS} tokens"))
        self._unmute()
        wanted = self._wanted()
        actions += [self._release(author, self._router.why(author)) for author in sorted(self._active - wanted)]
        room = self._options.drafters - len(self._active | self._recalled)
        for author in (
            sorted(wanted - self._active - self._recalled)[: max(0, room)] if self._options.recalls else ()
        ):
            self._recalled.add(author)
            actions.append(RecallDrafter(author, self._router.why(author)))
        return actions

    def _release(self, author: int, why: str) -> ReleaseDrafter:
        self._active.discard(author)
        self._unheard.discard(author)
        return ReleaseDrafter(author, why)

    def _mute(self, author: int) -> None:
        """Let a drafter without news rest: a text that did not repeat itself so far may do so yet."""
        nap_tokens = 2 * self._naps_tokens.get(author, SILENT_TOKENS)
        self._naps_tokens[author] = nap_tokens
        self._muted[author] = self._seen_tokens + nap_tokens
        self._router.leave(author)

    def _unmute(self) -> None:
        is_last = self._muted.keys() >= self._facts.keys()
        for author in sorted(self._muted):
            if is_last or self._seen_tokens >= self._muted[author]:
                del self._muted[author]
                self._router.join(author, self._facts[author])

    def _wanted(self) -> set[int]:
        picked, trials = self._picked()
        # Words do not replace deeds: the best of those heard goes only when another who was heard is better.
        proven = [author for author in self._ranked() if author not in self._unheard][:1]
        weights = self._router.weights()
        has_evidence = self._seen_tokens >= TRIAL_TOKENS
        return (
            (self._unheard & self._active)
            | set(proven)
            | {
                author
                for rank, author in enumerate(picked)
                if not rank or author in trials or weights[author] >= MIN_WEIGHT or not has_evidence
            }
        )

    def _picked(self) -> tuple[list[int], set[int]]:
        """Who should draft, best first, and which of them only to be heard."""
        limit = self._options.drafters
        if self._options.recalls:
            return list(self._router.pick(limit)), set(self._router.trials(limit))
        return self._ranked()[:limit], set()
