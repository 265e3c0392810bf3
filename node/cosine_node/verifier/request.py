"""The state of a request in the step loop. Pure.

`ServedRequest` is the part that scheduling, memory and passes use: known tokens, a sequence in the KV cache, an
admission number. A `VerifierRequest` generates: passes feed the nodes of its live tree below the committed output.
An audit (`audits.AuditedStream`) has all its tokens from the start.
"""

import heapq
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import ClassVar, Final, NamedTuple, Protocol

from cosine_engine.base import PREFIX, Choice, Row
from cosine_engine.constraints.grammars import FORCED_PROBABILITY, MAX_FORCED, GrammarPlace, Guide
from cosine_engine.ngram import FollowerIndex
from cosine_p2p.fair_places import User
from cosine_p2p.strategy.prediction import Prediction
from cosine_p2p.strategy.tree import LiveTree, TreeNode
from cosine_p2p.trust.audit_rule import ROUNDING, is_near_tie
from cosine_protocol.codec import Message
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.draft import BASE, Node
from cosine_protocol.request import Request
from cosine_protocol.stream import FinishReason
from cosine_protocol.verify import (
    FORCED_AUTHOR,
    HOME_AUTHOR,
    Likelihood,
    LikelihoodDigest,
    Pacing,
    PromptLikelihoods,
)

CERTAIN: Final = 1.5
"""Standard errors of the lower bound on an acceptance rate: one rate in fifteen is overestimated."""
LIKE_DRAFTS: Final = 64
"""Recent drafts that determine the acceptance rate of a probability class. If all were accepted, the bound is 0.966
(32 drafts: 0.934; 128: 0.983), and a node that costs more of a plain pass is not fed. Drafts that turn bad are
trusted for as long."""
CLASSES: Final = 5
"""Probability classes of equal width. More classes learn more slowly; with fewer, likely drafts pay for the
others."""
SAID_DRAFTS: Final = LIKE_DRAFTS / 8
"""Weight of the client's stated probability, in outcomes: all before the first outcome, a ninth in the end."""


class DraftRates:
    """Acceptance rates of a client's drafts at one temperature, learned from all drafts, fed or not."""

    def __init__(self) -> None:
        self._judged = [0.0] * CLASSES
        self._right = [0.0] * CLASSES

    def learn(self, tree: LiveTree, tokens: Sequence[int]) -> None:
        """Learn from tokens about to be committed, except about home drafts; call before `tree.advance`."""
        for parent, token in zip((tree.root, *tree.follow(tokens)), tokens, strict=False):
            for child in parent.children.values():
                if (offered := probability_of_others(child)) is None:
                    continue
                like = _class_of(offered)
                keep = 1.0 - 1.0 / LIKE_DRAFTS
                self._judged[like] = keep * self._judged[like] + 1.0
                self._right[like] = keep * self._right[like] + (child.token == token)

    def least(self, draft_probability: float) -> float:
        """The lower bound (Wilson) of the acceptance rate at this probability; 0 without observations."""
        like = _class_of(draft_probability)
        judged, right, square = self._judged[like], self._right[like], CERTAIN**2
        if not judged:
            return 0.0
        spread = CERTAIN * math.sqrt(max(0.0, right * (judged - right) / judged) + square / 4)
        return max(0.0, (right + square / 2 - spread) / (judged + square))

    def usual(self, draft_probability: float) -> float:
        """The acceptance rate at this probability, which is the prior."""
        like = _class_of(draft_probability)
        return (self._right[like] + SAID_DRAFTS * draft_probability) / (self._judged[like] + SAID_DRAFTS)


def _class_of(draft_probability: float) -> int:
    return min(int(draft_probability * CLASSES), CLASSES - 1)


MAX_DEBT: Final = 0.01
FREE_PASSES: Final = 0.5
"""These bound the cost of speculation to 1 %: a request may owe that share of its plain time so far, or half a
plain pass, which lets a short request speculate where nodes are cheap."""


class SpeculationAccount:
    """The time that one request spent, minus its committed tokens times the cost of a plain pass at the same load.

    It limits the drafts that are fed to those it can afford if all are rejected, within the larger of `MAX_DEBT`
    and `FREE_PASSES`, and to those that pay even at the lower bound of the client's acceptance rate.

    This protects other requests in a pass from a client whose draft probabilities are wrong. An honest request of
    60 tokens next to one that sends only wrong drafts as certain takes 0.87 s without accounts and 0.62 s with
    them; plain decoding takes 0.60 s (emulated passes of 10 ms, 14.5 ms with a third token).
    """

    def __init__(self, rates: DraftRates | None = None) -> None:
        self._plain_s = 0.0
        self._debt_s = 0.0
        self._pass_s = 0.0
        self.rates = rates or DraftRates()

    def charge(self, *, spent_s: float, tokens: int, plain_pass_s: float) -> None:
        """Charge one pass: its duration, the tokens it committed, and the time of a plain one at the same load."""
        self._plain_s += tokens * plain_pass_s
        self._debt_s += spent_s - tokens * plain_pass_s
        self._pass_s = plain_pass_s

    @property
    def may_speculate(self) -> bool:
        return self._debt_s <= self._most_debt_s(self._pass_s)

    def _most_debt_s(self, plain_pass_s: float) -> float:
        return max(MAX_DEBT * self._plain_s, FREE_PASSES * plain_pass_s)

    def most_nodes(
        self, nodes: Iterable[TreeNode], longer_s: Callable[[int], float], *, plain_pass_s: float
    ) -> int:
        """The number of leading nodes that may be fed; `longer_s` of a number is the time that they add."""
        least: dict[TreeNode, float] = {}
        affordable = certain = 0
        surely = most_won_s = 0.0

        def least_of(node: TreeNode | None) -> float:
            if node is None or node.parent is None:
                return 1.0
            known = least.get(node)
            return least_of(node.parent) * node.draft_probability if known is None else known

        for count, node in enumerate(nodes, 1):
            least[node] = least_of(node.parent) * self.rates.least(node.draft_probability)
            surely += least[node]
            cost_s = longer_s(count)
            if self._debt_s + cost_s <= self._most_debt_s(plain_pass_s):
                affordable = count
            if (won_s := surely * plain_pass_s - cost_s) > most_won_s:
                certain, most_won_s = count, won_s
        return max(affordable, certain)


TARGET_AUTHOR: Final = 0
"""The author of the target's tokens, and of tokens that the verifier copies from the text or a prediction."""
MAX_NODES: Final = 12
MIN_PATH_PROBABILITY: Final = 0.1
"""Limits of a prompt lookup; it takes about 0.2 ms of Python a pass (docs/decisions/0012)."""
WRITTEN_PROBABILITY: Final = 0.9
"""Probability that the text writes required bytes in a way it used before."""
MAX_WRITTEN: Final = 4
"""Ways to write required bytes that are considered, each at the cost of a grammar lookup. Four equally frequent
ways are above `MIN_PATH_PROBABILITY`, ten are not."""
MIN_EXPECTED: Final = 0.005
"""Paths less likely than this bring less than 1/200 of a token; wide trees have hundreds."""


class OwnNodes(NamedTuple):
    """The verifier's own draft: nodes, parents first, and the author of each."""

    nodes: list[Node]
    authors: list[int]


class _Run(NamedTuple):
    """Consecutive tokens to draft, with the probability of each; `place` is the grammar place before them."""

    tokens: tuple[int, ...]
    probability: float
    author: int
    place: GrammarPlace | None


class PromptLookup:
    """Prompt lookup decoding for one request: an n-gram index of its text proposes likely continuations."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._index = FollowerIndex()
        self._index.extend(tokens)
        self._place: GrammarPlace | None = None
        self._written: dict[bytes, Counter[int]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens, and learn which of them wrote bytes that the grammar required."""
        self._index.extend(tokens)
        place, self._place = self._place, None
        for token in tokens:
            if place is None:
                break
            if begun := _begun(place):
                self._written.setdefault(begun, Counter())[token] += 1
            place = place.after((token,))

    def draft(self, place: GrammarPlace | None = None) -> OwnNodes:
        """Return the most probable continuations, parents first, with at most `MAX_NODES` copied tokens.

        `place` is the text's place in its grammar: tokens it excludes are not copied, and tokens it forces are
        added, at most `MAX_FORCED`.
        """
        self._place = place
        own = OwnNodes([], [])
        paths: list[tuple[int, ...]] = []
        heap: list[tuple[float, int, int, int, _Run]] = []
        left = {TARGET_AUTHOR: MAX_NODES, FORCED_AUTHOR: MAX_FORCED}

        def push(path_probability: float, path: tuple[int, ...], parent: int, run: _Run) -> None:
            heapq.heappush(heap, (-path_probability, len(path), parent, run.tokens[0], run))

        def push_children(
            parent: int, path: tuple[int, ...], path_probability: float, place: GrammarPlace | None
        ) -> None:
            if place is not None and (forced := place.forced()[: left[FORCED_AUTHOR]]):
                push(path_probability, path, parent, _Run(forced, FORCED_PROBABILITY, FORCED_AUTHOR, place))
                return
            for token, probability in self._followers(path, place):
                if path_probability * probability < MIN_PATH_PROBABILITY:
                    break
                run = _Run((token,), probability, TARGET_AUTHOR, place)
                push(path_probability * probability, path, parent, run)

        push_children(BASE, (), 1.0, place)
        while heap:
            negated, _, parent, _, run = heapq.heappop(heap)
            if left[run.author] < len(run.tokens):
                continue
            left[run.author] -= len(run.tokens)
            path = () if parent == BASE else paths[parent]
            for token in run.tokens:
                own.nodes.append(Node(parent, token, run.probability))
                own.authors.append(run.author)
                path, parent = (*path, token), len(paths)
                paths.append(path)
            after = None if run.place is None else run.place.after(run.tokens)
            if run.place is None or after is not None:
                push_children(parent, path, -negated, after)
        return own

    def _followers(self, path: tuple[int, ...], place: GrammarPlace | None) -> Sequence[tuple[int, float]]:
        """The tokens that may follow a path, with their probabilities."""
        length = len(self._index.tokens)
        self._index.extend(path)
        found = self._index.estimate().found
        self._index.cut(length)
        if place is None:
            return found
        if written := self._written.get(_begun(place)):
            # The text's habit: the quote after a name and the colon are one token or two.
            share = WRITTEN_PROBABILITY / written.total()
            found = tuple((token, share * count) for token, count in written.most_common(MAX_WRITTEN))
        allowed = [one for one in found if place.after(one[:1])]
        # Renormalise without the excluded tokens.
        left = 1.0 - sum(probability for _, probability in found) + sum(probability for _, probability in allowed)
        return [(token, probability / left) for token, probability in allowed]


def _begun(place: GrammarPlace) -> bytes:
    """The bytes that must come next, if no token is forced."""
    return b"" if place.forced() else place.begun()


SCORED_TOKENS: Final = 64
"""Known tokens of one request that a pass scores over the whole vocabulary, which bounds memory. It is a quarter of
the size of a token tree."""


def is_drafter(author: int) -> bool:
    """True for an author that is a peer, and not the verifier itself."""
    return author not in (TARGET_AUTHOR, HOME_AUTHOR, FORCED_AUTHOR)


def is_planned(node: TreeNode) -> bool:
    """True for a node that the verifier's own drafter drafted, alone or with others."""
    return HOME_AUTHOR in node.draft_probabilities


def probability_of_others(node: TreeNode) -> float | None:
    """The highest draft probability of authors other than the verifier's own drafter; None without any."""
    said = [p for author, p in node.draft_probabilities.items() if author != HOME_AUTHOR]
    return max(said, default=None)


class ClientChannel(Protocol):
    """The channel to the client, for example `cosine_p2p.transport.channel.Channel`."""

    @property
    def peer_id(self) -> str: ...

    def post(self, message: Message) -> bool:
        """Queue a message without waiting; False if the client reads too slowly."""


class RequestStage(Enum):
    """The stage of a request between two passes."""

    PREFILL = auto()
    """Its prompt, and the output it was resumed with, are not all in the KV cache yet."""
    RECOMPUTE = auto()
    """Its pages were preempted: all but the pending token is prefilled again, which commits nothing."""
    DECODE = auto()


@dataclass(slots=True)
class KvState:
    """The sequence of a request in the engine's KV cache.

    `scope` determines which requests share prefix pages (`cosine_engine.base.Engine.open`); `cached_tokens` is
    the length of the prefix that was found there.
    """

    sequence: int
    scope: str | None = None
    fed_tokens: int = 0
    has_pages: bool = False
    was_prefix_cache_tried: bool = False
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The tokens that one pass commits after `position` output tokens, with the author and likelihood of each.

    `accepted_nodes` are the names of the row's nodes that become part of the prefix, in order.
    """

    position: int
    tokens: tuple[int, ...]
    authors: bytes
    accepted_nodes: tuple[int, ...]
    near_ties: int
    finish: FinishReason | None
    likelihoods: tuple[Likelihood, ...] = ()


@dataclass(slots=True, eq=False)
class ServedRequest(ABC):
    """One request in the step loop, between passes; equal only to itself.

    `output` holds its known output tokens, `admission` its arrival number, `near_tie` the margin below which
    rounding may decide, `waited_passes` the number of passes in a row without it. `has_crowd`: its user wants more
    than its share of a pass; `is_crowd`: this request exceeds that share. `user_name` distinguishes users of one
    client. `awaits_prefill`: a pass is under way over the last of its known tokens, or over tokens that are
    compared.
    """

    channel: ClientChannel
    number: int
    request: Request
    kv: KvState
    output: list[int]
    admission: int = 0
    near_tie: float = ROUNDING["float32"].near_tie
    stage: RequestStage = RequestStage.PREFILL
    is_cancelled: bool = False
    waited_passes: int = 0
    is_crowd: bool = False
    has_crowd: bool = False
    awaits_prefill: bool = False
    user_name: bytes = b""
    user: User = field(init=False)
    d_0: bytes = field(init=False)

    gives_way: ClassVar[bool] = False
    """True for a kind that gets the rest of a pass after prompts, and whose place others may take."""

    def __post_init__(self) -> None:
        self.user = User(self.client, self.user_name)
        self.d_0 = request_digest(self.request)

    @abstractmethod
    def prefill_row(self, tokens: int) -> Row:
        """The row that feeds at most `tokens` of the next known tokens."""

    def post(self, message: Message) -> bool:
        """Queue a message to the client; False if it reads too slowly."""
        return self.channel.post(message)

    @property
    def client(self) -> str:
        """The peer id of the client."""
        return self.channel.peer_id

    @property
    def can_use_pass(self) -> bool:
        return not self.awaits_prefill

    @property
    def may_reuse_prefix(self) -> bool:
        """True if the prefix cache may supply its tokens."""
        return True

    @property
    def is_pending_fed(self) -> bool:
        """True if a pass is under way over the pending token, so that only drafts can be fed."""
        return False

    @property
    def known_tokens(self) -> tuple[int, ...]:
        """All tokens to be prefilled: prompt and output, without the pending token if they are recomputed."""
        tokens = (*self.request.prompt, *self.output)
        return tokens[:-1] if self.stage is RequestStage.RECOMPUTE else tokens

    @property
    def unfed_tokens(self) -> int:
        """Tokens to be prefilled before it decodes; 0 once it does."""
        if self.stage is RequestStage.DECODE:
            return 0
        is_pending_apart = self.stage is RequestStage.RECOMPUTE
        return len(self.request.prompt) + len(self.output) - is_pending_apart - self.kv.fed_tokens

    def note_fed(self, tokens: int) -> None:
        """Count known tokens that are in the KV cache now."""
        self.kv.fed_tokens += tokens

    def unfeed(self, row: Row) -> None:
        """Undo a row that no pass has fed."""
        self.awaits_prefill = False

    def preempt(self, sequence: int) -> None:
        """Start over with an empty sequence after a preemption."""
        self.kv = KvState(sequence, self.kv.scope)
        self.awaits_prefill = False


@dataclass(slots=True, eq=False, kw_only=True)
class VerifierRequest(ServedRequest):
    """A request that generates. `output` includes the tokens before `first` that it was resumed with.

    `authors` is the number of drafters, `drafters` their peer ids as the client states them, `guide` the tokens its
    constraint forces, `prediction` the output its client expects. `has_home_drafts`: the verifier's drafter drafted
    for the next pass, which feeds `beside_home` nodes of others. `observer` transforms messages to the client.

    `fed` maps the pending token (the tree's root) and fed live nodes to their names in the sequence, of which
    `named` were given so far; `choices` and `likelihoods` are the results after such names. `told` is the digest of
    the likelihoods sent to the client, of which `prompt_told` are of prompt tokens.
    """

    pacing: Pacing
    authors: int
    drafters: tuple[str, ...] = ()
    lookup: PromptLookup | None = None
    guide: Guide | None = None
    prediction: Prediction | None = None
    account: SpeculationAccount | None = None
    observer: Callable[[Message], Message] | None = None
    has_home_drafts: bool = False
    is_drafted_ahead: bool = False
    """True if the verifier's own drafter drafts all the time, beside passes over stages."""
    beside_home: int = 0
    fed: dict[TreeNode, int] = field(default_factory=dict)
    named: int = 0
    choices: dict[int, Choice] = field(default_factory=dict)
    likelihoods: dict[int, Likelihood] = field(default_factory=dict)
    told: LikelihoodDigest = field(default_factory=LikelihoodDigest)
    prompt_told: int = 0
    accepted: Counter[int] = field(default_factory=Counter)
    tree: LiveTree = field(init=False)
    first: int = field(init=False)

    def __post_init__(self) -> None:
        ServedRequest.__post_init__(self)
        self.first = len(self.output)
        self.tree = LiveTree(roll_digest(self.d_0, self.output), len(self.output))

    def post(self, message: Message) -> bool:
        return self.channel.post(message if self.observer is None else self.observer(message))

    @property
    def tokens_left(self) -> int:
        return self.request.max_new_tokens - len(self.output)

    @property
    def may_speculate(self) -> bool:
        """True unless its drafts have cost more than they gained."""
        return self.account is None or self.account.may_speculate

    def expected_tokens(self) -> float:
        """The expected number of accepted tokens of the current tree, by the client's acceptance rates."""
        deepest = self.tree.position + self.tokens_left - 1

        def likely(node: TreeNode) -> float | None:
            if node.position >= deepest:
                return None
            said = probability_of_others(node)
            if said is None or self.account is None:
                return node.draft_probability
            return self.account.rates.usual(said)

        found = self.tree.path_probabilities(likely)
        return sum(probability for probability in found.values() if probability >= MIN_EXPECTED)

    @property
    def may_be_drafted_for(self) -> bool:
        """True if the verifier may add drafts of its own, by prompt lookup or its drafter."""
        return self.pacing is Pacing.FREE

    @property
    def tells_prompt(self) -> bool:
        """True while likelihoods of prompt tokens are to be sent; a client that resumes has them already."""
        asked = self.request.logprobs
        return asked is not None and asked.of_prompt and not self.first and self.stage is RequestStage.PREFILL

    @property
    def may_reuse_prefix(self) -> bool:
        # The prefix cache has no scores.
        return not self.tells_prompt

    @property
    def is_pending_fed(self) -> bool:
        return self.tree.root in self.fed

    def prefill_row(self, tokens: int) -> Row:
        """The row that feeds at most `tokens` of the next known tokens.

        Only the last known token is scored, and none while recomputing, unless prompt likelihoods are due.
        """
        known, fed = self.known_tokens, self.kv.fed_tokens
        chunk = known[fed : fed + (min(tokens, SCORED_TOKENS) if self.tells_prompt else tokens)]
        is_scored = fed + len(chunk) == len(known) and self.stage is RequestStage.PREFILL
        row = Row.chain(self.kv.sequence, chunk, scored_from=len(chunk) - is_scored)
        if self.request.logprobs is None:
            return row
        followers: tuple[int | None, ...] = (None,) * is_scored
        if self.tells_prompt:
            # A preemption may have come after some were sent.
            followers = (*self.request.prompt[max(fed, self.prompt_told) + 1 : fed + len(chunk) + 1], *followers)
        return replace(row, followers=followers, top=self.request.logprobs.top)

    def take_prompt_likelihoods(self, row: Row, likelihoods: Sequence[Likelihood]) -> PromptLikelihoods | None:
        """The message with the prompt likelihoods of a row; None if there are none."""
        told = likelihoods[: sum(token is not None for token in row.followers)]
        if not told:
            return None
        position = self.prompt_told + 1
        self.prompt_told += len(told)
        self.told.add(told)
        return PromptLikelihoods(self.number, position, tuple(told))

    def note_fed(self, tokens: int) -> None:
        """Count known tokens that are in the KV cache now; after the last recomputed one it decodes again."""
        ServedRequest.note_fed(self, tokens)
        if self.stage is RequestStage.RECOMPUTE and not self.unfed_tokens:
            self.stage = RequestStage.DECODE

    def preempt(self, sequence: int) -> None:
        ServedRequest.preempt(self, sequence)
        self.fed, self.choices, self.likelihoods = {}, {}, {}
        if self.stage is RequestStage.DECODE:
            self.stage = RequestStage.RECOMPUTE

    def decode_row(self, chosen: Sequence[TreeNode]) -> Row:
        """The row of the pending token, unless it was fed, and chosen nodes. Raises `ValueError` if it is empty."""
        pending = [] if self.is_pending_fed else [self.tree.root]
        nodes = [*pending, *sorted(chosen, key=lambda node: node.position)]
        # Names are never reused: the choice after a dropped node may still arrive.
        first = self.named
        self.named += len(nodes)
        self.fed |= {node: name for name, node in enumerate(nodes, first)}
        self.beside_home = sum(not is_planned(node) for node in chosen) if self.has_home_drafts else 0
        asked = self.request.logprobs
        return Row(
            self.kv.sequence,
            (*self.output[-1:] * len(pending), *(node.token for node in nodes[len(pending) :])),
            tuple(range(first, first + len(nodes))),
            tuple(PREFIX if node.parent is None else self.fed[node.parent] for node in nodes),
            followers=() if asked is None else (None,) * len(nodes),
            top=0 if asked is None else asked.top,
        )

    def unfeed(self, row: Row) -> None:
        ServedRequest.unfeed(self, row)
        self.fed = {node: name for node, name in self.fed.items() if name not in row.nodes}

    def judge(self, row: Row, choices: Sequence[Choice], likelihoods: Sequence[Likelihood] = ()) -> Verdict:
        """Add the choices after a row, and walk down the tree as far as choices and fed children are known."""
        self.awaits_prefill = False
        self.choices |= zip(row.nodes[row.scored_from :], choices, strict=True)
        self.likelihoods |= zip(row.nodes[row.told_from :], likelihoods, strict=True)
        node = self.tree.root
        is_prefill = self.stage is RequestStage.PREFILL
        name = row.nodes[-1] if is_prefill else self.fed.get(node)
        accepted = list(row.nodes[:-1]) if is_prefill else []
        tokens: list[int] = []
        told: list[Likelihood] = []
        authors = bytearray()
        near_ties = 0
        finish = None
        while finish is None and name is not None and (choice := self.choices.get(name)) is not None:
            accepted.append(name)
            near_ties += is_near_tie(choice.margin, sampling=self.request.sampling, near_tie=self.near_tie)
            tokens.append(choice.token)
            if self.request.logprobs is not None:
                told.append(self.likelihoods[name])
            if choice.token in self.request.eos:
                finish = FinishReason.EOS
            elif len(tokens) >= self.tokens_left:
                finish = FinishReason.LENGTH
            child = node.children.get(choice.token)
            name = None if child is None else self.fed.get(child)
            author = TARGET_AUTHOR
            if child is not None and name is not None:
                node = child
                # Forced and copied tokens are free, so no drafter is credited for them; the verifier's own drafter
                # is credited for those that nobody else drafted, over stages for those that nobody drafted before.
                said = child.draft_probabilities
                if FORCED_AUTHOR in said:
                    author = FORCED_AUTHOR
                elif TARGET_AUTHOR not in said:
                    others = said.keys() - {HOME_AUTHOR}
                    is_first = self.is_drafted_ahead and next(iter(said)) == HOME_AUTHOR
                    author = HOME_AUTHOR if is_first or not others else child.most_confident_author(others)
            authors.append(author)
        return Verdict(
            len(self.output), tuple(tokens), bytes(authors), tuple(accepted), near_ties, finish, tuple(told)
        )

    def charge(
        self, verdict: Verdict, *, nodes: int, spent_s: float, plain_pass_s: float, beside_home_s: float = 0.0
    ) -> None:
        """Charge a pass with `nodes` drafted nodes against a plain one at the same load.

        A pass without drafts costs nothing. With home drafts, which are planned by their own rates, only the nodes
        of others are charged: they lengthened the pass by `beside_home_s`.
        """
        if self.account is not None:
            tokens = len(verdict.tokens)
            if self.has_home_drafts:
                brought = sum(not is_planned(node) for node in self.tree.follow(verdict.tokens[:-1]))
                spent_s = beside_home_s + (tokens - brought) * plain_pass_s
            elif not nodes:
                plain_pass_s = spent_s
            self.account.charge(spent_s=spent_s, tokens=tokens, plain_pass_s=plain_pass_s)
        self.has_home_drafts = False

    def commit(self, verdict: Verdict) -> list[int]:
        """Append a verdict, advance the tree and draft below it; return the names of fed nodes off the path."""
        if self.account is not None:
            self.account.rates.learn(self.tree, verdict.tokens)
        self.output.extend(verdict.tokens)
        self.tree.advance(verdict.tokens)
        followed = {self.tree.root, *self.tree.walk()} if self.fed else set()
        dropped = [name for node, name in self.fed.items() if node not in followed]
        self.fed = {node: name for node, name in self.fed.items() if node in followed}
        self.choices = {name: self.choices[name] for name in self.fed.values() if name in self.choices}
        self.likelihoods = {name: self.likelihoods[name] for name in self.choices if name in self.likelihoods}
        if self.lookup is not None:
            self.lookup.extend(verdict.tokens)
            if self.may_be_drafted_for:
                own = self.lookup.draft(None if self.guide is None else self.guide.place(self.output))
                self.tree.attach(self.tree.root.digest, self.tree.position, *own)
        if self.prediction is not None:
            self.prediction.follow(verdict.tokens)
            nodes = self.prediction.draft()
            self.tree.attach(self.tree.root.digest, self.tree.position, nodes, [TARGET_AUTHOR] * len(nodes))
        self.accepted.update(filter(is_drafter, verdict.authors))
        self.stage = RequestStage.DECODE
        return dropped
