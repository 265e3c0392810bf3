"""What becomes of the drafts of a drafter that is always right, on their way into the target's passes.

`python -m tests.swarm.draft_ways` prints what docs/benchmarks.md shows a part of ("How much drafts can serve").
"""

import asyncio
import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import product
from typing import Final

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_lab.simulation.verifiers import Policy
from cosine_node.drafter.draft_tree import DraftTree
from cosine_node.engine.base import Choice, Row
from cosine_node.engine.curve import CostCurve
from cosine_node.engine.tree import SequenceTree
from cosine_node.passes.emulation import DRAFTER_SHAPE, VERIFIER_SHAPE
from cosine_node.verifier.request import Verdict, VerifierRequest
from cosine_node.verifier.service import VerifierService
from cosine_p2p.request.results import Generation
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.strategy.tree import Block, TreeNode
from cosine_p2p.trust.mandates import Coordination
from cosine_protocol import messages as m
from cosine_protocol.digests import extend_digest
from tests.swarm.reference import VOCAB_TOKENS, prompt_of, target_engine

UNTRIED: Final = replace(STRATEGIES["cosine"], drafter_counts=())
"""Ours without the trials that let no drafter draft for a while (`cosine_p2p.strategy.speed_trial`)."""
DRAFT_S: Final = 0.006
"""A pass of the drafter over one token, as in the profile 60/6."""
TOKENS: Final = 96
CERTAIN: Final = 0.97
"""The draft probability of the target's own token."""
MOMENT_S: Final = 1e-9
"""What comes just as a pass begins may be in it or not."""


class RightDrafter(ScriptedEngine):
    """The target itself, sure of what it says."""

    def __init__(self) -> None:
        super().__init__(vocab_tokens=VOCAB_TOKENS)

    def _choice(self, tree: SequenceTree, name: int, candidates: int) -> Choice:
        choice = super()._choice(tree, name, candidates)
        doubt = (1.0 - CERTAIN) / VOCAB_TOKENS
        shown = tuple((token, CERTAIN if not rank else doubt) for rank, (token, _) in enumerate(choice.candidates))
        return replace(choice, candidates=shown)


class Fate(Enum):
    """What became of the draft of one committed position."""

    TAKEN = auto()
    """It was in the pass that committed its position."""
    LOST = auto()
    """It was drafted in time to be in that pass, and was not."""
    DURING_PASS = auto()
    """It came while that pass ran, whose own last token it is."""
    TOO_LATE = auto()
    """It came after that pass, or never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A target whose pass over one token takes `ratio` of the drafter's, at equal distances."""

    ratio: float
    rtt_s: float
    coordination: Coordination

    @property
    def way_s(self) -> float:
        """From the drafter to the verifier, through the client where that coordinates."""
        return self.rtt_s / (2 if self.coordination is Coordination.VERIFIER else 1)


@dataclass(slots=True)
class DraftWays:
    """Notes of one request: when each prefix was drafted, when it came to the verifier, and who passes committed.

    `fates` has one for each position but the first, which the prompt gives, and the last, which ends the text.
    """

    way_s: float
    drafted_s: dict[bytes, float] = field(default_factory=dict)
    came_s: dict[bytes, float] = field(default_factory=dict)
    begun_s: float = 0.0
    fed: set[bytes] = field(default_factory=set)
    fates: list[Fate] = field(default_factory=list)

    def note_drafted(self, nodes: Iterable[TreeNode]) -> None:
        for node in nodes:
            self.drafted_s.setdefault(node.digest, _now_s())

    def note_at_verifier(self, nodes: Iterable[TreeNode]) -> None:
        for node in nodes:
            self.came_s.setdefault(node.digest, _now_s())

    def note_begun(self, fed: Iterable[TreeNode]) -> None:
        self.begun_s, self.fed = _now_s(), {node.digest for node in fed}

    def note_committed(self, request: VerifierRequest, verdict: Verdict) -> None:
        """A pass has ended; the request's tree stands where it began."""
        position, digest = verdict.position, request.tree.root.digest
        for index, token in enumerate(verdict.tokens):
            digest = extend_digest(digest, token)
            if 0 < position + index < request.request.max_new_tokens - 1:
                self.fates.append(self._fate_of(digest))

    def _fate_of(self, digest: bytes) -> Fate:
        if digest in self.fed:
            return Fate.TAKEN
        if self.drafted_s.get(digest, math.inf) + self.way_s < self.begun_s - MOMENT_S:
            return Fate.LOST
        return Fate.DURING_PASS if self.came_s.get(digest, math.inf) <= _now_s() else Fate.TOO_LATE


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the positions of one text that drafts could serve: how many were offered in time, taken, and lost."""

    fates: Counter[Fate]
    generation: Generation

    @property
    def positions(self) -> int:
        return self.fates.total()

    @property
    def offered(self) -> float:
        """The share for which the draft was at the verifier before the target gave the token itself."""
        return (self.positions - self.fates[Fate.TOO_LATE]) / self.positions

    @property
    def taken(self) -> float:
        """The share that passes took from drafts; each pass ends with a token of its own."""
        return self.fates[Fate.TAKEN] / self.positions

    @property
    def lost(self) -> int:
        return self.fates[Fate.LOST]


def shares_of(case: Case, *, tokens: int = TOKENS) -> Shares:
    """The second text of a client with one drafter that is always right: nobody is dialled for it any more."""
    target = CostCurve(tuple((size, case.ratio * DRAFT_S * cost) for size, cost in VERIFIER_SHAPE))
    drafter = CostCurve(tuple((size, DRAFT_S * cost) for size, cost in DRAFTER_SHAPE))

    async def run(patch: pytest.MonkeyPatch) -> Shares:
        async with SimulatedSwarm(one_way_s=case.rtt_s / 2) as swarm:
            # Without copying, whatever no drafter drafted is a token of a pass of its own.
            policy = Policy(uses_prompt_lookup=False)
            await swarm.verifier(target_engine(), curve=target, policy=policy, coordination=UNTRIED)
            await swarm.drafter(RightDrafter(), curve=drafter)
            client = await swarm.client(coordination=case.coordination, strategies={UNTRIED.name: UNTRIED})
            rng = random.Random("draft ways")
            await client.generate(prompt_of(rng), max_new_tokens=tokens)
            ways = DraftWays(case.way_s)
            _watch(ways, patch)
            generation = await client.generate(prompt_of(rng), max_new_tokens=tokens)
            assert generation.coordinator == case.coordination
            return Shares(Counter(ways.fates), generation)

    with pytest.MonkeyPatch.context() as patch:
        return run_virtual(run(patch))


def _watch(ways: DraftWays, patch: pytest.MonkeyPatch) -> None:
    """Note what the drafter and the verifier do from now on."""
    absorb, attach = DraftTree.absorb, VerifierService._attach
    decode_row, commit = VerifierRequest.decode_row, VerifierRequest.commit

    def absorbed(tree: DraftTree, row: Row, choices: Sequence[Choice]) -> Block | None:
        block = absorb(tree, row, choices)
        ways.note_drafted(tree._tree.walk())
        return block

    def attached(verifier: VerifierService, request: VerifierRequest, message: m.Tree) -> None:
        attach(verifier, request, message)
        ways.note_at_verifier(request.tree.walk())

    def begun(request: VerifierRequest, chosen: Sequence[TreeNode]) -> Row:
        ways.note_begun(chosen)
        return decode_row(request, chosen)

    def committed(request: VerifierRequest, verdict: Verdict) -> list[int]:
        ways.note_committed(request, verdict)
        return commit(request, verdict)

    patch.setattr(DraftTree, "absorb", absorbed)
    patch.setattr(VerifierService, "_attach", attached)
    patch.setattr(VerifierRequest, "decode_row", begun)
    patch.setattr(VerifierRequest, "commit", committed)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


RATIOS: Final = (1.0, 1.5, 2.0, 4.0, 10.0, 30.0)
RTTS_S: Final = (0.0, 0.004, 0.02, 0.1)


def main() -> None:
    sys.stdout.write(
        "| pass | RTT, ms | coordinator | offered | taken | came in its pass | later | lost | counted |\n"
    )
    for rtt_s, coordination, ratio in product(RTTS_S, (Coordination.VERIFIER, Coordination.CLIENT), RATIOS):
        shares = shares_of(Case(ratio=ratio, rtt_s=rtt_s, coordination=coordination))
        late = (shares.fates[fate] / shares.positions for fate in (Fate.DURING_PASS, Fate.TOO_LATE))
        figures = " | ".join(f"{100 * share:.0f} %" for share in (shares.offered, shares.taken, *late))
        counted = f"{shares.lost} | {shares.generation.offered} of {shares.generation.tokens}"
        sys.stdout.write(f"| {ratio:g} | {1e3 * rtt_s:g} | {coordination} | {figures} | {counted} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
