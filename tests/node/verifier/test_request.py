"""One request of a verifier: admission, the verdict of a pass, the cost of drafts, and credits."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.base import Choice, Row
from cosine_engine.curve import CostCurve
from cosine_engine.ngram import FollowerIndex
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.verifier.admission import VerifierConfig, admitted, check_claim
from cosine_node.verifier.free_drafts import MAX_NODES, MIN_PATH_PROBABILITY, TARGET_AUTHOR, PromptLookup
from cosine_node.verifier.request import Verdict, VerifierRequest
from cosine_node.verifier.served_request import PassShare, RequestStage
from cosine_node.verifier.speculation import FREE_PASSES, MAX_DEBT, SpeculationAccount
from cosine_p2p.strategy.tree import TreeNode
from cosine_protocol.digests import roll_digest
from cosine_protocol.draft import BASE, Node
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.request import Request, Sampling, Shaping, TokenBias
from cosine_protocol.stream import FinishReason
from cosine_protocol.verify import FORCED_AUTHOR, HOME_AUTHOR, Open, Pacing, Transcript
from tests.node.peers import TARGET, TOKENIZER, expected_output, request_of
from tests.node.verifier.replaying import claim_of, unfed

# Admission of requests and audits.

ENGINE = ScriptedEngine(vocab_tokens=16, context_tokens=32)
CONFIG = VerifierConfig(target_digest=TARGET, tokenizer_digest=TOKENIZER)


def admit(committed: tuple[int, ...] = (), **changes: Any) -> Request:
    """Open a stream as client "c"; `changes` are fields of the request."""
    message = Open(1, replace(request_of("c"), **changes), committed, Pacing.FREE, ())
    return admitted(message, "c", engine=ENGINE, config=CONFIG)


def check(tokens: tuple[int, ...] = (4, 5), **changes: Any) -> Transcript:
    """Ask for an audit of what another verifier signed; `changes` are fields of the request."""
    return check_claim(claim_of(request_of("another", **changes), tokens), engine=ENGINE, config=CONFIG)


def test_what_fits_is_served_from_wherever_it_goes_on_and_audited_for_anybody() -> None:
    for committed in ((), (4, 5)):
        assert admit(committed, prompt=(1,) * 24) == request_of("c", prompt=(1,) * 24)
    assert check().tokens == 2
    assert check((4, 5, 3), eos=(3,)).tokens == 3
    # Other numerics may be audited.
    assert check(numerics="float32").tokens == 2


def test_a_text_may_end_at_a_token_that_the_model_has_no_row_for() -> None:
    """For example a token that only the tokenizer knows; it is never chosen."""
    sampling = Sampling(shaping=Shaping(min_tokens=1, held_back=(16,)))
    assert admit(sampling=sampling, eos=(16,)).eos == (16,)


OF_ANOTHER_MODEL: list[tuple[dict[str, Any], ErrorCode]] = [
    ({"target_digest": bytes([7]) * 32}, ErrorCode.WRONG_TARGET),
    ({"tokenizer_digest": bytes([7]) * 32}, ErrorCode.WRONG_TOKENIZER),
    ({"prompt": ()}, ErrorCode.UNSUPPORTED),
    ({"prompt": (1,) * 31}, ErrorCode.PROMPT_TOO_LONG),
    ({"prompt": (1, 16)}, ErrorCode.WRONG_TOKENIZER),
    *(
        ({"sampling": Sampling(shaping=shaping)}, ErrorCode.WRONG_TOKENIZER)
        for shaping in (
            Shaping(logit_bias=(TokenBias(16, 1.0),)),
            Shaping(bad_words=((3, 16),)),
        )
    ),
]


@pytest.mark.parametrize(
    ("ask", "changes", "code"),
    [
        *((ask, *case) for ask in (admit, check) for case in OF_ANOTHER_MODEL),
        (admit, {"numerics": "float32"}, ErrorCode.UNSUPPORTED),
        (admit, {"client": "d"}, ErrorCode.MALFORMED),
        (admit, {"prompt": (1,) * 25}, ErrorCode.PROMPT_TOO_LONG),
        (admit, {"committed": (3, 16)}, ErrorCode.WRONG_TOKENIZER),
        (admit, {"committed": (3,) * 8}, ErrorCode.BAD_COMMITTED),
        (admit, {"committed": (3,), "eos": (3,)}, ErrorCode.BAD_COMMITTED),
        (check, {"tokens": (3, 16)}, ErrorCode.WRONG_TOKENIZER),
        (check, {"tokens": ()}, ErrorCode.BAD_TRANSCRIPT),
    ],
)
def test_what_cannot_be_served_or_audited_is_refused_with_the_reason(
    ask: Callable[..., object], changes: dict[str, Any], code: ErrorCode
) -> None:
    with pytest.raises(PeerError) as refused:
        ask(**changes)
    assert refused.value.code == code


# The verdict of a pass equals decoding one token at a time.


def state_of(request: Request) -> VerifierRequest:
    state = unfed(request, output=(9,))
    state.stage = RequestStage.DECODE
    return state


def verdict(
    state: VerifierRequest, nodes: Sequence[Node], says: dict[int, int], authors: Sequence[int] = ()
) -> Verdict:
    """Attach nodes, and judge a pass in which the target chooses `says[token]` after each token."""
    state.tree.attach(state.tree.root.digest, state.tree.position, nodes, authors or [1] * len(nodes))
    row = state.decode_row(list(state.tree.walk()))
    return state.judge(row, [Choice(says[token], 1.0) for token in row.tokens])


CHAIN = [Node(BASE, 10, 0.9), Node(0, 11, 0.9), Node(1, 12, 0.9)]
SIBLINGS = [Node(BASE, 10, 0.9), Node(BASE, 20, 0.1), Node(1, 21, 0.5), Node(1, 22, 0.4)]
TWICE = [Node(BASE, 10, 0.9), Node(0, 11, 0.9), Node(BASE, 11, 0.5), Node(2, 10, 0.5)]
ALL_RIGHT = {9: 10, 10: 11, 11: 12, 12: 13}


@pytest.mark.parametrize(
    ("drafts", "says", "of_request", "tokens", "authors", "finish"),
    [
        (([], []), {9: 10}, {}, (10,), [0], None),
        ((CHAIN, [1, 1, 1]), {9: 10, 10: 11, 11: 30, 12: 31}, {}, (10, 11, 30), [1, 1, 0], None),
        ((CHAIN, [1, 1, 1]), {9: 20, 10: 11, 11: 12, 12: 13}, {}, (20,), [0], None),
        ((SIBLINGS, [1, 2, 2, 3]), {9: 20, 10: 0, 20: 22, 21: 0, 22: 23}, {}, (20, 22, 23), [2, 3, 0], None),
        ((TWICE, [1, 1, 1, 1]), {9: 11, 10: 40, 11: 10}, {}, (11, 10, 40), [1, 1, 0], None),
        ((CHAIN, [1, 1, 1]), ALL_RIGHT, {"eos": (11,)}, (10, 11), [1, 1], FinishReason.EOS),
        ((CHAIN, [1, 1, 1]), ALL_RIGHT, {"max_new_tokens": 3}, (10, 11), [1, 1], FinishReason.LENGTH),
        (([], []), {9: 10}, {"eos": (10,), "max_new_tokens": 2}, (10,), [0], FinishReason.EOS),
    ],
    ids=["none", "as far as right", "wrong", "sibling", "one token twice", "end", "length", "end at the length"],
)
def test_drafts_are_taken_as_far_as_the_target_agrees(
    drafts: tuple[list[Node], list[int]],
    says: dict[int, int],
    of_request: dict[str, Any],
    tokens: tuple[int, ...],
    authors: list[int],
    finish: FinishReason | None,
) -> None:
    step = verdict(state_of(request_of("c", **of_request)), drafts[0], says, drafts[1])
    assert (step.tokens, step.authors, step.finish) == (tokens, bytes(authors), finish)
    assert len(step.accepted_nodes) == len(tokens) and step.accepted_nodes[0] == 0


@pytest.mark.parametrize(
    ("claims", "author"),
    [
        ([(3, 0.9), (2, 0.9), (1, 0.5)], 2),
        ([(3, 0.9), (TARGET_AUTHOR, 0.2)], TARGET_AUTHOR),
        ([(3, 0.9), (TARGET_AUTHOR, 0.2), (FORCED_AUTHOR, 0.9)], FORCED_AUTHOR),
    ],
)
def test_the_surest_author_has_the_credit_unless_the_verifier_drafted_it_for_nothing(
    claims: list[tuple[int, float]], author: int
) -> None:
    """Of equal probabilities the first author counts."""
    state = state_of(request_of("c"))
    for claimed_by, confidence in claims:
        state.tree.attach(state.tree.root.digest, 1, [Node(BASE, 10, confidence)], [claimed_by])
    assert verdict(state, [], {9: 10, 10: 11}).authors == bytes([author, 0])


def test_near_ties_are_counted_on_the_path_only() -> None:
    state = state_of(request_of("c"))
    state.tree.attach(state.tree.root.digest, 1, CHAIN, [1, 1, 1])
    row = state.decode_row(list(state.tree.walk()))
    state.near_tie = 0.1
    choices = [Choice(10, 0.05), Choice(11, 1.0), Choice(50, 0.05), Choice(13, 0.0)]
    assert state.judge(row, choices).near_ties == 2


def attach_at_random(state: VerifierRequest, rng: random.Random, stream: tuple[int, ...]) -> list[TreeNode]:
    """Attach a tree with parts of the true stream and others; return the nodes that may be fed."""
    nodes: list[Node] = []
    depths = {BASE: 0}
    to_come = stream[len(state.output) :]
    for index in range(rng.randrange(12)):
        parent = rng.randrange(-1, index)
        depth = depths[parent]
        is_true = rng.random() < 0.7 and depth < len(to_come)
        nodes.append(Node(parent, to_come[depth] if is_true else rng.randrange(16), rng.random()))
        depths[index] = depth + 1
    state.tree.attach(state.tree.root.digest, state.tree.position, nodes, [rng.randrange(1, 4) for _ in nodes])
    limit = state.tree.position + state.tokens_left - 1
    return [node for node in state.tree.walk() if node.position < limit]


@pytest.mark.parametrize("most_under_way", [1, 6])
@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(10, 90))]
)
def test_any_drafts_any_resumption_and_any_order_of_passes_give_the_naive_stream(
    seed: int, most_under_way: int
) -> None:
    rng = random.Random(seed)
    engine = ScriptedEngine(vocab_tokens=16, model_seed=seed)
    sampling = Sampling(temperature=rng.choice([0.0, 0.8]), repetition_penalty=rng.choice([1.0, 1.3]), seed=seed)
    prompt = tuple(rng.randrange(16) for _ in range(rng.randrange(1, 6)))
    request = request_of("c", prompt=prompt, max_new_tokens=rng.randrange(1, 30), sampling=sampling)
    request = replace(request, eos=tuple(rng.sample(range(16), rng.randrange(2))))
    stream = expected_output(request, engine)
    resumed = stream[: rng.randrange(len(stream))]
    sequence = engine.open(sampling=request.sampling, prompt_tokens=len(prompt))
    state = unfed(request, output=resumed, sequence=sequence)
    under_way: deque[tuple[Row, Sequence[Choice]]] = deque()
    together, finish = 0, None
    # The engine computes rows in order, as stages do; results are known later.
    row = state.prefill_row(state.unfed_tokens)
    under_way.append((row, engine.forward([row])[0].choices))
    while finish is None:
        if state.stage is RequestStage.DECODE and len(under_way) < most_under_way:
            chosen: list[TreeNode] = []
            for node in attach_at_random(state, rng, stream):
                is_possible = node.parent in (None, *state.fed, *chosen, state.tree.root)
                if node not in state.fed and is_possible and rng.random() < 0.8:
                    chosen.append(node)
            if chosen or not state.is_pending_fed:
                row = state.decode_row(chosen)
                under_way.append((row, engine.forward([row])[0].choices))
        together = max(together, len(under_way))
        while under_way and (len(under_way) >= most_under_way or rng.random() < 0.4) and finish is None:
            step = state.judge(*under_way.popleft())
            if step.tokens:
                engine.keep(sequence, step.accepted_nodes)
                engine.prune(sequence, state.commit(step))
                assert state.tree.root.digest == roll_digest(state.d_0, state.output)
                finish = step.finish
    assert tuple(state.output) == stream
    assert together > 1 or most_under_way == 1 or len(stream) - len(resumed) < 12
    engine.release(sequence)
    assert engine.live_tokens == 0


# The account bounds the loss against plain decoding.

PLAIN_S = 0.05


class Ledger:
    """The account's sums, kept separately, and the loss of the worst pass."""

    def __init__(self) -> None:
        self.account = SpeculationAccount()
        self.spent_s = self.plain_s = self.worst_loss_s = 0.0

    def charge(self, *, spent_s: float, tokens: int) -> None:
        self.account.charge(spent_s=spent_s, tokens=tokens, plain_pass_s=PLAIN_S)
        self.spent_s += spent_s
        self.plain_s += tokens * PLAIN_S
        self.worst_loss_s = max(self.worst_loss_s, spent_s - tokens * PLAIN_S)


@given(st.integers(0, 2**32), st.floats(0, 1), st.floats(1.0, 1.75))
def test_no_walk_loses_more_than_the_allowance_and_one_pass(seed: int, acceptance: float, dearness: float) -> None:
    """Drafts that are never accepted cost one percent of a long request."""
    rng = random.Random(seed)
    ledger = Ledger()
    for _ in range(1000):
        if ledger.account.may_speculate:
            ledger.charge(spent_s=PLAIN_S * rng.uniform(1.0, dearness), tokens=1 + (rng.random() < acceptance))
        else:
            ledger.charge(spent_s=PLAIN_S, tokens=1)
        allowed_s = max(MAX_DEBT * ledger.plain_s, FREE_PASSES * PLAIN_S)
        assert ledger.spent_s - ledger.plain_s <= allowed_s + max(0.0, ledger.worst_loss_s) + 1e-9


# Prompt lookup.

TEXTS = st.lists(st.integers(0, 5), max_size=60)


def path_of(nodes: Sequence[Node], index: int) -> tuple[list[int], float]:
    tokens, probability = [], 1.0
    while index != BASE:
        tokens.append(nodes[index].token)
        probability *= nodes[index].confidence
        index = nodes[index].parent
    return tokens[::-1], probability


@given(TEXTS, TEXTS)
def test_drafts_are_few_likely_and_what_the_index_says_of_all_that_was_committed(
    first: list[int], more: list[int]
) -> None:
    text, grown = first + more, PromptLookup(first)
    grown.draft()
    grown.extend(more)
    nodes, authors = grown.draft()
    assert (nodes, authors) == PromptLookup(text).draft()
    assert authors == [TARGET_AUTHOR] * len(nodes)
    assert len(nodes) <= MAX_NODES
    for number, node in enumerate(nodes):
        tokens, probability = path_of(nodes, number)
        assert probability >= MIN_PATH_PROBABILITY * 0.999
        assert node.parent < number
        index = FollowerIndex()
        index.extend([*text, *tokens[:-1]])
        assert (node.token, node.confidence) in index.estimate().found
    assert len({tuple(path_of(nodes, number)[0]) for number in range(len(nodes))}) == len(nodes)


@pytest.mark.parametrize(("is_drafted_ahead", "author"), [(True, HOME_AUTHOR), (False, 1)])
def test_over_stages_nobody_is_credited_for_what_the_heads_own_drafter_drafted_before(
    author: int, *, is_drafted_ahead: bool
) -> None:
    state, nodes = state_of(request_of("c")), [Node(BASE, 1, 0.5), Node(0, 2, 0.5)]
    state.is_drafted_ahead = is_drafted_ahead
    state.tree.attach(state.tree.root.digest, state.tree.position, nodes[:1], [HOME_AUTHOR])
    state.tree.attach(state.tree.root.digest, state.tree.position, [Node(BASE, 1, 0.9), nodes[1]], [1, 1])
    given = verdict(state, nodes, {9: 1, 1: 2, 2: 7}, [HOME_AUTHOR] * 2)
    assert (given.tokens, tuple(given.authors)) == ((1, 2, 7), (author, 1, TARGET_AUTHOR))


def test_of_a_pass_with_home_drafts_a_client_owes_what_its_own_nodes_cost_and_did_not_bring() -> None:
    state = state_of(request_of("c"))
    nodes = [Node(BASE, 1, 0.9), Node(0, 2, 0.9)]
    state.tree.attach(state.tree.root.digest, state.tree.position, nodes[:1], [HOME_AUTHOR])
    state.tree.attach(state.tree.root.digest, state.tree.position, nodes, [1, 1])

    def charge(*tokens: int, each_s: float) -> bool:
        """Charge a pass with two nodes, one of them by the client alone, that cost this much each."""
        state.has_home_drafts, state.beside_home = True, 1
        curve = CostCurve(((1, 0.1), (3, 0.1 + 2 * each_s)))
        state.charge(Verdict(0, tokens, bytes(len(tokens)), (0,), 0, None), PassShare(2, 1, 9.0, 9.0, 0.1, curve))
        return state.account.may_speculate

    # The cost of home drafts is not charged.
    assert charge(1, 7, each_s=0.0)
    # Token 1 is from both, 2 from the client alone.
    assert charge(1, 2, 7, each_s=0.1)
    assert not charge(1, 7, each_s=0.1)
