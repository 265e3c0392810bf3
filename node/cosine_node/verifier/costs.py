"""The costs of passes, on one device or over stages, and the draft nodes that pay. Pure.

On a device passes are sequential: the cost of each length is learned from real passes, a request is charged the
time of its passes, and a node must pay for the time by which it lengthens a pass.

Over stages several passes are under way, and a pass costs what it takes at the slowest stage. A real pass shows
little of that, since it also waits and travels. Nodes are therefore charged when they are fed, and a pass is filled
up to a length that hardly slows the stages.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_engine.curve import LONGEST_PROMPT_PASS_S, CostCurve
from cosine_node.passes.feed_pace import ChainPace
from cosine_node.passes.learned_curve import LearnedCurve
from cosine_node.verifier.request import VerifierRequest
from cosine_node.verifier.served_request import PassShare
from cosine_node.verifier.speculation import is_planned
from cosine_p2p.strategy.tree import LiveTree, TreeNode

MIN_PATH_PROBABILITY: Final = 0.005
"""Bounds the work of selection: a less likely node gains less than 1/200 of a token."""
LONGEST_PASS: Final = 4.0
"""Longest pass, as a multiple of a pass over one token: the length of a pass is the pace of all requests in it."""
MIN_BUDGET_TOKENS: Final = 16
"""Sixteen requests, the default `max_requests`, fit in one pass even if every token costs."""
MOST_TOKENS: Final = 512
"""Bounds the memory of a pass if the measured curve is flat, and of a prompt if no longer one was measured."""
STRETCH: Final = 1.25
"""Factor by which drafts may lengthen a pass over stages: with recorded text over four stages of 15 ms and 200 ms
of network time, 8 and 12 nodes a pass (1.1 and 1.2 times) are the fastest of 4, 8, 12 and 16, by up to 10 %."""
LONGER_SHARE: Final = 0.02
"""Share of a traversal by which they may lengthen it at each stage up to `USUAL_NODES`: light stages take less time
for a pass than its messages do, so that nodes would wait for many short passes."""
USUAL_NODES: Final = 12


@dataclass(frozen=True, slots=True)
class CandidateNode:
    """A node of the request with index `owner`, and the probability that its whole path is committed."""

    owner: int
    node: TreeNode
    path_probability: float


def candidate_nodes(
    owner: int,
    tree: LiveTree,
    *,
    max_depth: int,
    min_path_probability: float = MIN_PATH_PROBABILITY,
    fed: Container[TreeNode] = (),
) -> list[CandidateNode]:
    """Unfed nodes of a live tree with at least this path probability, at most `max_depth` deep, parents first."""
    deepest = tree.position + max_depth
    found = tree.path_probabilities(lambda node: node.draft_probability if node.position < deepest else None)
    return [
        CandidateNode(owner, node, probability)
        for node, probability in found.items()
        if probability >= min_path_probability and node not in fed
    ]


def most_probable_first(candidates: Sequence[CandidateNode]) -> list[CandidateNode]:
    """Candidates by descending path probability; a parent always comes before its children."""
    return sorted(candidates, key=lambda candidate: (-candidate.path_probability, candidate.node.position))


def pass_chunk_tokens(curve: CostCurve) -> int:
    """The most prompt tokens of a pass: `MOST_TOKENS`, or more if more were measured to take little time."""
    measured = curve.points[-1][0]
    if measured <= MOST_TOKENS:
        return MOST_TOKENS
    return max(MOST_TOKENS, curve.most_tokens(within_s=LONGEST_PROMPT_PASS_S, limit=measured))


class PassCosts:
    """The costs of a device's passes. `measured` is the curve of the idle device.

    `most_tokens` bounds the tokens of a pass other than prompt tokens. Default: by `LONGEST_PASS`.
    """

    def __init__(self, measured: CostCurve, *, most_tokens: int | None = None) -> None:
        self.measured = measured
        self.most_tokens = most_tokens or measured.tokens_within(
            LONGEST_PASS, least=MIN_BUDGET_TOKENS, most=MOST_TOKENS
        )
        self._learned = LearnedCurve(measured)

    @property
    def curve(self) -> CostCurve:
        """The present cost of passes."""
        return self._learned.curve

    def note_pass(self, tokens: int, *, elapsed_s: float) -> None:
        """Learn from a finished pass."""
        self._learned.note_pass(tokens, elapsed_s=elapsed_s)

    def took_s(self, tokens: int, *, elapsed_s: float) -> float:
        """The time for which a pass over these tokens kept others waiting; `elapsed_s` includes the work around
        it."""
        return elapsed_s

    def share(self, *, nodes: int, load: int, elapsed_s: float) -> PassShare:
        """The share of one of `load` requests in a pass of `elapsed_s`, with `nodes` drafted nodes."""
        return PassShare(nodes, load, elapsed_s, elapsed_s, self.curve.seconds(load), self.curve)

    def chunk_tokens(self, unfed_tokens: int) -> int:
        """The most prompt tokens of the next pass, if the longest prompt has `unfed_tokens` left."""
        return pass_chunk_tokens(self.curve)

    def budget_tokens(self, fed_tokens: int) -> int:
        """The most tokens of a pass that feeds `fed_tokens` without drafts."""
        return self.most_tokens

    def allowed(
        self, request: VerifierRequest, own: Sequence[CandidateNode], *, fed_tokens: int
    ) -> list[CandidateNode]:
        """The candidates that a request can afford in addition to `fed_tokens` tokens, and all home drafts.

        It can afford those that its account covers even if all are rejected, or that pay even at the client's
        lowest acceptance rates.
        """
        ranked = most_probable_first(own)[: max(0, self.most_tokens - fed_tokens)]
        planned = [one for one in ranked if request.has_home_drafts and is_planned(one.node)]
        others = [one for one in ranked if not (request.has_home_drafts and is_planned(one.node))]
        base_tokens, curve = fed_tokens + len(planned), self.curve
        base_s = curve.seconds(base_tokens)
        most = request.account.most_nodes(
            (candidate.node for candidate in others),
            lambda nodes: curve.seconds(base_tokens + nodes) - base_s,
            plain_pass_s=curve.seconds(fed_tokens),
        )
        return planned + others[:most]

    def that_pay(self, candidates: Sequence[CandidateNode], *, fed_tokens: int) -> list[CandidateNode]:
        """The most probable candidates that together maximise the expected tokens per second of the pass.

        The pass also feeds `fed_tokens` tokens of decoding requests and prompts; a node adds its path probability
        and one token's cost. This is the batch objective of CoSine (arXiv 2503.10325) for one verifier.
        """
        ranked = most_probable_first(candidates)[: max(0, self.most_tokens - fed_tokens)]
        expected_tokens, curve = float(fed_tokens), self.curve
        best_rate = expected_tokens / curve.seconds(fed_tokens) if fed_tokens else 0.0
        best_count = 0
        for count, candidate in enumerate(ranked, 1):
            expected_tokens += candidate.path_probability
            rate = expected_tokens / curve.seconds(fed_tokens + count)
            if rate > best_rate:
                best_rate, best_count = rate, count
        return ranked[:best_count]

    def free_nodes(self, fed_tokens: int, *, most: int) -> int:
        """The number of nodes, at most `most`, that do not lengthen a pass over `fed_tokens` tokens."""
        # The learned curve has no two equal costs, so the measured one shows what is free.
        fed_s = self.measured.seconds(fed_tokens)
        return next((n for n in range(most) if self.measured.seconds(fed_tokens + n + 1) > fed_s), most)


class ChainCosts(PassCosts):
    """The costs of passes over stages; `measured` is the curve of the slowest stage."""

    def __init__(self, measured: CostCurve, pace: ChainPace, *, most_tokens: int | None = None) -> None:
        super().__init__(measured, most_tokens=most_tokens)
        self._pace = pace

    def note_pass(self, tokens: int, *, elapsed_s: float) -> None:
        return

    def took_s(self, tokens: int, *, elapsed_s: float) -> float:
        return self.measured.seconds(tokens)

    def share(self, *, nodes: int, load: int, elapsed_s: float) -> PassShare:
        # The nodes were charged when they were fed.
        plain_s = self.measured.seconds(load) / load
        return PassShare(nodes, load, elapsed_s, plain_s, plain_s, self.measured)

    def chunk_tokens(self, unfed_tokens: int) -> int:
        return self._pace.chunk_tokens(unfed_tokens, most=pass_chunk_tokens(self.measured))

    def budget_tokens(self, fed_tokens: int) -> int:
        least_s = self.measured.seconds(max(1, fed_tokens))
        longer_s = LONGER_SHARE * self._pace.traversal_s(1)
        usual = self.measured.most_tokens(within_s=least_s + longer_s, limit=fed_tokens + USUAL_NODES)
        return max(usual, self.measured.most_tokens(within_s=STRETCH * least_s, limit=self.most_tokens))

    def allowed(
        self, request: VerifierRequest, own: Sequence[CandidateNode], *, fed_tokens: int
    ) -> list[CandidateNode]:
        return list(own) if request.account.may_speculate else []

    def that_pay(self, candidates: Sequence[CandidateNode], *, fed_tokens: int) -> list[CandidateNode]:
        return list(candidates)
