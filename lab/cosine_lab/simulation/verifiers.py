"""Verifiers other than the product's: for rivals, which step them, and with parts switched off."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from cosine_lab.rivals.paths import best_path
from cosine_node.passes.runner import ServedEngine
from cosine_node.verifier.batch import NodeSelection
from cosine_node.verifier.costs import CandidateNode, PassCosts, candidate_nodes, most_probable_first
from cosine_node.verifier.request import Verdict, VerifierRequest
from cosine_node.verifier.served_request import RequestStage
from cosine_node.verifier.service import VerifierService
from cosine_node.verifier.speculation import SpeculationAccount
from cosine_p2p.strategy.tree import TreeNode
from cosine_p2p.transport.channel import Channel
from cosine_protocol.draft import MAX_TREE_NODES
from cosine_protocol.verify import Open, Pacing, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The measures of a verifier under free pacing; by default all those of the product.

    uses_prompt_lookup: draft the continuation of the same words before.
    keeps_account: give plain passes to a request whose drafts cost more than they bring.
    drops_costly_nodes: feed only drafts that raise the expected tokens per second, else all live ones.
    only_best_path: feed only the most probable child of each node.
    max_nodes: maximum number of draft nodes of a request in a pass. Default: no limit.
    is_stepped: serve rivals that request each pass, with all other measures of the product (`SteppedVerifier`).
    """

    uses_prompt_lookup: bool = True
    keeps_account: bool = True
    drops_costly_nodes: bool = True
    only_best_path: bool = False
    max_nodes: int | None = None
    is_stepped: bool = False


class PolicySelection(NodeSelection):
    """Selects the draft nodes that a policy admits."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def candidates(self, index: int, request: VerifierRequest) -> list[CandidateNode]:
        drops_costly = self._policy.drops_costly_nodes
        found = super().candidates(index, request) if drops_costly else all_nodes(index, request)
        if self._policy.only_best_path:
            path = set(best_path(request.tree, lambda node: node.draft_probability))
            found = [candidate for candidate in found if candidate.node in path]
        return most_probable_first(found)[: self._policy.max_nodes] if self._policy.max_nodes is not None else found

    def that_pay(
        self, candidates: Sequence[CandidateNode], *, fed_tokens: int, costs: PassCosts
    ) -> Sequence[CandidateNode]:
        drops_costly = self._policy.drops_costly_nodes
        return super().that_pay(candidates, fed_tokens=fed_tokens, costs=costs) if drops_costly else candidates


class Unlimited(SpeculationAccount):
    """An account that allows all nodes."""

    @property
    def may_speculate(self) -> bool:
        return True

    def most_nodes(
        self, nodes: Iterable[TreeNode], longer_s: Callable[[int], float], *, plain_pass_s: float
    ) -> int:
        return len(list(nodes))


class PolicyVerifier(VerifierService):
    """A verifier with a policy."""

    def __init__(self, served: ServedEngine, *, policy: Policy, **options: Any) -> None:
        super().__init__(served, selection=PolicySelection(policy), **options)
        self._policy = policy

    def request_of(self, channel: Channel, asked: Open) -> VerifierRequest:
        request, changes = super().request_of(channel, asked), dict[str, Any]()
        if not self._policy.uses_prompt_lookup:
            changes["free"] = None
        if not self._policy.keeps_account:
            changes["account"] = Unlimited(request.account.rates)
        return replace(request, **changes)


@dataclass(slots=True, eq=False, kw_only=True)
class SteppedRequest(VerifierRequest):
    """A request that gets a pass only for each `Tree` of its client, after the prefill."""

    is_pass_wanted: bool = True

    @property
    def can_use_pass(self) -> bool:
        return not self.awaits_choices and (self.stage is not RequestStage.DECODE or self.is_pass_wanted)

    def commit(self, verdict: Verdict) -> tuple[int, ...]:
        self.is_pass_wanted = False
        return VerifierRequest.commit(self, verdict)


class SteppedSelection(NodeSelection):
    """Selects all nodes of stepped requests at any cost; of others those that pay."""

    def select(
        self, drafting: Sequence[tuple[int, VerifierRequest]], *, fed_tokens: int, costs: PassCosts
    ) -> list[CandidateNode]:
        stepped = [one for one in drafting if isinstance(one[1], SteppedRequest)]
        others = [one for one in drafting if one not in stepped]
        chosen = [candidate for one in stepped for candidate in all_nodes(*one)[:MAX_TREE_NODES]]
        return chosen + super().select(others, fed_tokens=fed_tokens, costs=costs)


class SteppedVerifier(VerifierService):
    """Steps every request that names drafters and rejects the verifier's (`rivals.SteppedKind`).

    The pass for such a client is over the nodes of its latest `Tree`, whose base must be the whole committed text.
    The product's verifier never waits for a client.
    """

    def __init__(self, served: ServedEngine, **options: Any) -> None:
        super().__init__(served, selection=SteppedSelection(), **options)

    def request_of(self, channel: Channel, asked: Open) -> VerifierRequest:
        request = super().request_of(channel, asked)
        if request.pacing is not Pacing.PLAIN or not request.drafters:
            return request
        return SteppedRequest(**{one.name: getattr(request, one.name) for one in fields(request) if one.init})

    def _attach(self, request: VerifierRequest, message: Tree) -> None:
        super()._attach(request, message)
        if isinstance(request, SteppedRequest) and message.base == request.tree.root.digest:
            request.is_pass_wanted = True


def verifier_class(policy: Policy | None) -> Callable[..., VerifierService]:
    """The class of verifiers with a policy."""
    if policy is None:
        return VerifierService
    return SteppedVerifier if policy.is_stepped else partial(PolicyVerifier, policy=policy)


def all_nodes(index: int, request: VerifierRequest) -> list[CandidateNode]:
    """Return every live node of a request that was not fed yet, however unlikely, parents first."""
    return candidate_nodes(
        index, request.tree, max_depth=request.tokens_left - 1, min_path_probability=0.0, fed=request.fed
    )
