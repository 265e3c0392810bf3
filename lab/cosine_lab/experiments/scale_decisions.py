"""The cost of a client's decisions: wall microseconds of choosing nodes and of taking in a commit."""

import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from cosine_lab.experiments.experiment import EXPERTS, JsonRow
from cosine_lab.simulation.participants import identity_of
from cosine_lab.simulation.records import DIGEST
from cosine_p2p.directory.selection import pick_drafters, rank_verifiers
from cosine_p2p.session.drafter_search import MAX_ASKED_DRAFTERS
from cosine_p2p.strategy.base import (
    Committed,
    DrafterStarted,
    FragmentReceived,
    Strategy,
    StrategyKind,
    VerifierOpened,
)
from cosine_protocol.digests import roll_digest
from cosine_protocol.messages import Draft, PassStats
from cosine_protocol.nodes import BASE, Node, NodeBlock
from cosine_protocol.records import SCHEMA, NodeRecord, Role

# Choices: a load of a strategy as simulations at 20 ms show it, with drafts that differ after the first token.
CHAIN_TOKENS: Final = 6
COMMIT_TOKENS: Final = 3
VOCAB_TOKENS: Final = 997
STATS: Final = PassStats(nodes=16, near_ties=0, pass_us=60_000)


def decision_rows(strategy: StrategyKind, *, candidates: Sequence[int], repeats: int) -> list[JsonRow]:
    """One row for each number of candidates: medians of choosing, and of the strategy's `Committed`."""
    committed_us = median(commit_times_us(strategy, commits=repeats))
    return [
        {"candidates": count, **_choosing_us(count, repeats=repeats), "committed_with_8_drafters_us": committed_us}
        for count in candidates
    ]


def _choosing_us(count: int, *, repeats: int) -> dict[str, float]:
    chance = random.Random(count)
    verifiers = [_record(index, Role.VERIFIER, chance) for index in range(count)]
    drafters = [_record(index, Role.DRAFTER, chance) for index in range(count)]
    decisions: dict[str, Callable[[], object]] = {
        "rank_verifiers_us": lambda: rank_verifiers(verifiers, chance=chance.random),
        "pick_drafters_us": lambda: pick_drafters(
            drafters, tokenizer_digest=DIGEST, limit=MAX_ASKED_DRAFTERS, chance=chance.random
        ),
    }
    found = {}
    for name, decide in decisions.items():
        times_us = []
        for _ in range(repeats):
            began_s = time.perf_counter()
            decide()
            times_us.append(1e6 * (time.perf_counter() - began_s))
        found[name] = median(times_us)
    return found


def commit_times_us(kind: StrategyKind, *, commits: int) -> list[float]:
    """Wall microseconds of each of so many commits of a strategy all of whose drafters draft in each round."""
    root, position, times_us = bytes(16), 0, []
    strategy = kind.make(root)
    strategy.on(VerifierOpened(0.06, 0.02), 0.0)
    for author in range(1, MAX_ASKED_DRAFTERS + 1):
        strategy.on(DrafterStarted(author, 2.0 + author / 10, 0.006, 0.02), 0.0)
    for round_number in range(commits):
        _draft(strategy, root, position, round_number)
        tokens = tuple(_token(position + offset) for offset in range(COMMIT_TOKENS))
        root = roll_digest(root, tokens)
        event = Committed(position, tokens, root, STATS)
        began_s = time.perf_counter()
        strategy.on(event, 0.1 * round_number)
        times_us.append(1e6 * (time.perf_counter() - began_s))
        position += COMMIT_TOKENS
    return times_us


def _draft(strategy: Strategy, root: bytes, position: int, round_number: int) -> None:
    """Every drafter sends a chain with a second choice at each place; some chains miss."""
    for author in range(1, MAX_ASKED_DRAFTERS + 1):
        misses = random.Random(f"{author} {round_number}").random() < author / (2 * MAX_ASKED_DRAFTERS)
        nodes: list[Node] = []
        parent = BASE
        for offset in range(CHAIN_TOKENS):
            right = _token(position + offset)
            first = right + VOCAB_TOKENS + author if misses and offset == 1 else right
            nodes += [Node(parent, first, 0.7), Node(parent, right + 2 * VOCAB_TOKENS + author, 0.2)]
            parent = len(nodes) - 2
        strategy.on(
            FragmentReceived(author, Draft(1, round_number, root, position, NodeBlock.of(nodes))),
            0.1 * round_number,
        )


def _token(position: int) -> int:
    return position * position % VOCAB_TOKENS


def _record(index: int, role: Role, chance: random.Random) -> NodeRecord:
    return NodeRecord(
        schema=SCHEMA,
        peer_id=identity_of(role, index).peer_id,
        role=role,
        target="target",
        target_digest=DIGEST,
        content_digest=DIGEST,
        tokenizer_digest=DIGEST,
        numerics="float32",
        model="model",
        expertise=(EXPERTS[index % len(EXPERTS)],),
        capacity_requests=16,
        load_requests=chance.randrange(17),
        pass_us=chance.randrange(4_000, 12_000),
        context_tokens=4096,
        eos=(),
        addresses=(),
        software="bench",
        emulated="",
        sequence=1,
        issued_at_s=0.0,
        lifetime_s=600.0,
    )
