"""Verifiers other than the product's: for rivals, which step them, and with parts switched off."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from cosine_lab.rivals.paths import best_path
from cosine_node.verifier.pass_rows import CandidateNode, PassRows, candidate_nodes, most_probable_first
from cosine_node.verifier.request import RequestStage, ServedRequest, Verdict, VerifierRequest
from cosine_node.verifier.scheduler import PassSchedule
from cosine_node.verifier.service import VerifierService
from cosine_p2p.transport.channel import Channel
from cosine_protocol.draft import MAX_TREE_NODES
from cosine_protocol.request import Request
from cosine_protocol.verify import Open, Pacing, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The measures of a verifier under free pacing; by default all those of the product.

    uses_prompt_lookup: draft the continuation of the same words before.
    keeps_account: give plain passes to a request whose drafts cost more than they bring.
    drops_costly_nodes: feed only drafts that raise the expected tokens per second, else all live ones.
    only_best_path: feed only the most probable child of each node.
    max_nodes: maximum number of draft nodes of a request in a pass. Default: no limit.
    """

    uses_prompt_lookup: bool = True
    keeps_account: bool = True
    drops_costly_nodes: bool = True
    only_best_path: bool = False
    max_nodes: int | None = None


class PolicyRows(PassRows):
    """Return rows with the draft nodes that a policy admits."""

    def __init__(self, *args: Any, policy: Policy, **options: Any) -> None:
        super().__init__(*args, **options)
        self._policy = policy

    def candidates(self, index: int, request: VerifierRequest) -> list[CandidateNode]:
        drops_costly = self._policy.drops_costly_nodes
        found = super().candidates(index, request) if drops_costly else all_nodes(index, request)
        if self._policy.only_best_path:
            path = set(best_path(request.tree, lambda node: node.draft_probability))
            found = [candidate for candidate in found if candidate.node in path]
        return most_probable_first(found)[: self._policy.max_nodes] if self._policy.max_nodes is not None else found

    def that_pay(self, candidates: Sequence[CandidateNode], fed_tokens: int) -> list[CandidateNode]:
        return super().that_pay(candidates, fed_tokens) if self._policy.drops_costly_nodes else list(candidates)


class PolicyVerifier(VerifierService):
    """A verifier with a policy."""

    def __init__(self, *, policy: Policy, **options: Any) -> None:
        super().__init__(make_rows=partial(PolicyRows, policy=policy), **options)
        self._policy = policy

    def request_of(self, channel: Channel, message: Open, asked: Request) -> VerifierRequest:
        request, policy = super().request_of(channel, message, asked), self._policy
        if not policy.uses_prompt_lookup:
            request.lookup = None
        if not policy.keeps_account:
            request.account = None
        return request


@dataclass(slots=True, eq=False, kw_only=True)
class SteppedRequest(VerifierRequest):
    """A request that gets a pass only for each `Tree` of its client, after the prefill."""

    is_pass_wanted: bool = True

    @property
    def can_use_pass(self) -> bool:
        return not self.awaits_prefill and (self.stage is not RequestStage.DECODE or self.is_pass_wanted)

    def commit(self, verdict: Verdict) -> list[int]:
        self.is_pass_wanted = False
        return VerifierRequest.commit(self, verdict)


class SteppedRows(PassRows):
    """Return rows of all nodes of stepped requests at any cost; of others those that pay."""

    def _select(
        self, active: Sequence[ServedRequest], schedule: PassSchedule, *, waiting: int, with_crowd: bool
    ) -> list[CandidateNode]:
        stepped = [
            candidate
            for index in schedule.decoding
            for request in [active[index]]
            if isinstance(request, SteppedRequest) and (with_crowd or not request.has_crowd)
            for candidate in all_nodes(index, request)[:MAX_TREE_NODES]
        ]
        return stepped + super()._select(active, schedule, waiting=waiting, with_crowd=with_crowd)

    def candidates(self, index: int, request: VerifierRequest) -> list[CandidateNode]:
        return [] if isinstance(request, SteppedRequest) else super().candidates(index, request)


class SteppedVerifier(VerifierService):
    """Steps every request that names drafters and rejects the verifier's (`rivals.SteppedKind`).

    The pass for such a client is over the nodes of its latest `Tree`, whose base must be the whole committed text.
    The product's verifier never waits for a client.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(make_rows=SteppedRows, **options)

    def request_of(self, channel: Channel, message: Open, asked: Request) -> VerifierRequest:
        request = super().request_of(channel, message, asked)
        if request.pacing is not Pacing.PLAIN or not request.drafters:
            return request
        return SteppedRequest(**_made_with(request))

    def _attach(self, request: VerifierRequest, message: Tree) -> None:
        super()._attach(request, message)
        if isinstance(request, SteppedRequest) and message.base == request.tree.root.digest:
            request.is_pass_wanted = True


def all_nodes(index: int, request: VerifierRequest) -> list[CandidateNode]:
    """Return every live node of a request that was not fed yet, however unlikely, parents first."""
    return candidate_nodes(
        index, request.tree, max_depth=request.tokens_left - 1, min_path_probability=0.0, fed=request.fed
    )


def _made_with(request: VerifierRequest) -> dict[str, Any]:
    """Return the options of a request in its present state."""
    return {one.name: getattr(request, one.name) for one in fields(request) if one.init}
