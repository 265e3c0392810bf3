"""The meaning of a pass for a request: the walk down its tree equals decoding one token after the other."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.engine.base import PREFIX, Choice, Row
from cosine_node.verifier.request import (
    TARGET_AUTHOR,
    KvState,
    PromptLookup,
    RequestStage,
    SpeculationAccount,
    Verdict,
    VerifierRequest,
)
from cosine_p2p.strategy.speed_trial import SpeedTrial
from cosine_p2p.strategy.tree import TreeNode
from cosine_p2p.strategy.trial_run import TrialRun
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.messages import FinishReason, Message, Pacing
from cosine_protocol.nodes import BASE, Node
from cosine_protocol.request import Request, Sampling
from tests.node.peers import expected_output, request_of


class NoChannel:
    """A client that is never told anything."""

    peer_id = "c"

    def post(self, message: Message) -> bool:
        raise AssertionError(f"{message} was posted")


def unfed(request: Request, *, output: tuple[int, ...] = (), sequence: int = 0) -> VerifierRequest:
    return VerifierRequest(NoChannel(), 1, request, KvState(sequence), list(output), pacing=Pacing.FREE, authors=3)


def state_of(request: Request, *, output: tuple[int, ...] = (9,)) -> VerifierRequest:
    state = unfed(request, output=output)
    state.stage = RequestStage.DECODE
    return state


def verdict(
    state: VerifierRequest, nodes: list[Node], says: dict[int, int], authors: list[int] | None = None
) -> Verdict:
    """Attach nodes, run a pass in which the target says `says[token]` after each token, and accept."""
    state.tree.attach(state.tree.root.digest, state.tree.position, nodes, authors or [1] * len(nodes))
    row = state.decode_row(list(state.tree.walk()))
    return state.judge(row, [Choice(says[token], 1.0) for token in row.tokens])


CHAIN = [Node(BASE, 10, 0.9), Node(0, 11, 0.9), Node(1, 12, 0.9)]


def test_prefill_feeds_everything_as_a_chain_and_scores_its_end() -> None:
    state = unfed(request_of("c", prompt=(1, 2, 3)), output=(4, 5))
    assert state.prefill_row(5) == Row(0, (1, 2, 3, 4, 5), (0, 1, 2, 3, 4), (PREFIX, 0, 1, 2, 3), scored_from=4)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 9])
def test_chunks_feed_all_of_a_prompt_and_only_the_last_asks_for_a_choice(chunk: int) -> None:
    state = unfed(request_of("c", prompt=(1, 2, 3)), output=(4, 5))
    fed: list[int] = []
    while state.unfed_tokens:
        row = state.prefill_row(chunk)
        fed += row.tokens
        state.note_fed(len(row.tokens))
        assert len(row.tokens) - row.scored_from == (not state.unfed_tokens)
        assert row.parents == (PREFIX, *row.nodes[:-1])
    assert fed == [1, 2, 3, 4, 5]


def test_after_a_preemption_all_but_the_pending_token_is_recomputed() -> None:
    state = state_of(request_of("c", prompt=(1, 2, 3)), output=(4, 5))
    state.preempt(sequence=7)
    assert state.can_use_pass
    row = state.prefill_row(100)
    assert (row.sequence, row.tokens, row.scored_from) == (7, (1, 2, 3, 4), 4)
    state.note_fed(4)
    assert (state.stage, state.unfed_tokens) == (RequestStage.DECODE, 0)
    assert state.can_use_pass


def test_a_preemption_while_the_prompt_is_fed_begins_it_anew() -> None:
    state = unfed(request_of("c", prompt=(1, 2, 3)))
    state.note_fed(2)
    state.preempt(sequence=7)
    assert state.prefill_row(3) == Row(7, (1, 2, 3), (0, 1, 2), (PREFIX, 0, 1), scored_from=2)


def test_a_row_names_parents_before_children() -> None:
    state = state_of(request_of("c"))
    state.tree.attach(state.tree.root.digest, 1, CHAIN, [1, 1, 1])
    row = state.decode_row(list(state.tree.walk())[::-1])
    assert row == Row(0, (9, 10, 11, 12), (0, 1, 2, 3), (PREFIX, 0, 1, 2))


def test_without_drafts_a_pass_commits_the_targets_own_token() -> None:
    step = verdict(state_of(request_of("c")), [], {9: 10})
    assert (step.tokens, step.authors, step.accepted_nodes, step.finish) == ((10,), b"\0", (0,), None)


def test_drafts_are_taken_as_far_as_the_target_agrees() -> None:
    step = verdict(state_of(request_of("c")), CHAIN, {9: 10, 10: 11, 11: 30, 12: 31})
    assert step.tokens == (10, 11, 30)
    assert step.authors == bytes([1, 1, 0])
    assert step.accepted_nodes == (0, 1, 2)


def test_a_wrong_first_draft_costs_nothing() -> None:
    step = verdict(state_of(request_of("c")), CHAIN, {9: 20, 10: 11, 11: 12, 12: 13})
    assert (step.tokens, step.accepted_nodes) == ((20,), (0,))


def test_the_right_sibling_is_found() -> None:
    nodes = [Node(BASE, 10, 0.9), Node(BASE, 20, 0.1), Node(1, 21, 0.5), Node(1, 22, 0.4)]
    step = verdict(state_of(request_of("c")), nodes, {9: 20, 10: 0, 20: 22, 21: 0, 22: 23}, [1, 2, 2, 3])
    assert step.tokens == (20, 22, 23)
    assert step.authors == bytes([2, 3, 0])


def test_the_same_token_at_two_places_is_told_apart() -> None:
    nodes = [Node(BASE, 10, 0.9), Node(0, 11, 0.9), Node(BASE, 11, 0.5), Node(2, 10, 0.5)]
    step = verdict(state_of(request_of("c")), nodes, {9: 11, 10: 40, 11: 10})
    assert step.tokens == (11, 10, 40)


def test_of_several_authors_the_surest_has_the_credit_and_the_first_among_equals() -> None:
    state = state_of(request_of("c"))
    for author, confidence in ((3, 0.9), (2, 0.9), (1, 0.5)):
        state.tree.attach(state.tree.root.digest, 1, [Node(BASE, 10, confidence)], [author])
    assert verdict(state, [], {9: 10, 10: 11}).authors == bytes([2, 0])


def test_what_prompt_lookup_drafted_as_well_is_no_drafters_credit() -> None:
    state = state_of(request_of("c"))
    for author, confidence in ((3, 0.9), (TARGET_AUTHOR, 0.2)):
        state.tree.attach(state.tree.root.digest, 1, [Node(BASE, 10, confidence)], [author])
    assert verdict(state, [], {9: 10, 10: 11}).authors == bytes([TARGET_AUTHOR, 0])


def test_prompt_lookup_that_slows_its_requests_is_given_up_and_drafts_no_more() -> None:
    trial = SpeedTrial((1, 0), knows_fed=True)
    trial.expect(0, 100.0)
    state = state_of(request_of("c", max_new_tokens=400))
    state.lookup, state.trial = PromptLookup(state.output), TrialRun(trial, 400)
    now_s, drafted = 0.0, []
    # The text repeats itself, so that there is much to copy; but passes with copied nodes take far too long.
    while state.tokens_left > 40:
        drafted.append(len(state.tree))
        now_s += 0.4 if drafted[-1] else 0.01
        done = verdict(state, [], {9: 7, 7: 8, 8: 9})
        state.note_pace(done, nodes=drafted[-1], now_s=now_s, load=1.0)
        state.commit(done)
    assert max(drafted) > 4
    assert trial.way == 0
    assert drafted[-20:] == [0] * 20


def test_the_walk_stops_at_an_end_token_in_its_middle() -> None:
    step = verdict(state_of(request_of("c", eos=(11,))), CHAIN, {9: 10, 10: 11, 11: 12, 12: 13})
    assert (step.tokens, step.finish) == ((10, 11), FinishReason.EOS)
    assert step.authors == bytes([1, 1])


def test_the_walk_stops_at_the_length_limit_in_its_middle() -> None:
    step = verdict(state_of(request_of("c", max_new_tokens=3)), CHAIN, {9: 10, 10: 11, 11: 12, 12: 13})
    assert (step.tokens, step.finish) == ((10, 11), FinishReason.LENGTH)


def test_an_end_token_at_the_limit_is_an_end_token() -> None:
    step = verdict(state_of(request_of("c", eos=(10,), max_new_tokens=2)), [], {9: 10})
    assert step.finish is FinishReason.EOS


def test_near_ties_are_counted_on_the_path_only() -> None:
    state = state_of(request_of("c"))
    state.tree.attach(state.tree.root.digest, 1, CHAIN, [1, 1, 1])
    row = state.decode_row(list(state.tree.walk()))
    state.near_tie = 0.1
    margins = (0.05, 1.0, 0.05, 0.0)
    choices = [Choice(token, margin) for token, margin in zip((10, 11, 50, 13), margins, strict=True)]
    assert state.judge(row, choices).near_ties == 2


def test_a_step_moves_stream_tree_and_credit() -> None:
    request = request_of("c")
    state = state_of(request)
    step = verdict(state, CHAIN, {9: 10, 10: 11, 11: 30, 12: 31}, [2, 1, 1])
    state.commit(step)
    assert state.output == [9, 10, 11, 30]
    assert state.tree.root.digest == roll_digest(request_digest(request), state.output)
    assert (state.tree.position, len(state.tree), state.accepted) == (4, 0, {2: 1, 1: 1})
    assert (step.base, step.position) == (roll_digest(request_digest(request), [9]), 1)


def random_draft(rng: random.Random, stream: tuple[int, ...]) -> list[Node]:
    """A random tree that holds parts of the true stream and much else."""
    nodes: list[Node] = []
    depths = {BASE: 0}
    for index in range(rng.randrange(12)):
        parent = rng.randrange(-1, index)
        depth = depths[parent]
        is_true = rng.random() < 0.7 and depth < len(stream)
        nodes.append(Node(parent, stream[depth] if is_true else rng.randrange(16), rng.random()))
        depths[index] = depth + 1
    return nodes


def run_through(
    request: Request, engine: ScriptedEngine, rng: random.Random, resumed: tuple[int, ...]
) -> VerifierRequest:
    """Serve a request pass by pass with random drafts, as the service does."""
    sequence = engine.open(sampling=request.sampling, prompt_tokens=len(request.prompt))
    state = unfed(request, output=resumed, sequence=sequence)
    stream = expected_output(request, engine)
    finish = None
    while finish is None:
        if state.stage is RequestStage.PREFILL:
            row = state.prefill_row(state.unfed_tokens)
        else:
            draft = random_draft(rng, stream[len(state.output) :])
            state.tree.attach(
                state.tree.root.digest, state.tree.position, draft, [rng.randrange(1, 4) for _ in draft]
            )
            limit = state.tree.position + state.tokens_left - 1
            row = state.decode_row([node for node in state.tree.walk() if node.position < limit])
        step = state.judge(row, engine.forward([row])[0].choices)
        engine.keep(sequence, step.accepted_nodes)
        engine.prune(sequence, row.nodes)
        state.commit(step)
        assert state.tree.root.digest == roll_digest(state.d_0, state.output)
        finish = step.finish
    engine.release(sequence)
    return state


@pytest.mark.parametrize("seed", range(60))
def test_any_drafts_and_any_resumption_give_the_naive_stream(seed: int) -> None:
    rng = random.Random(seed)
    engine = ScriptedEngine(vocab_tokens=16, model_seed=seed)
    sampling = Sampling(temperature=rng.choice([0.0, 0.8]), repetition_penalty=rng.choice([1.0, 1.3]), seed=seed)
    prompt = tuple(rng.randrange(16) for _ in range(rng.randrange(1, 6)))
    request = request_of("c", prompt=prompt, max_new_tokens=rng.randrange(1, 30), sampling=sampling)
    request = replace(request, eos=tuple(rng.sample(range(16), rng.randrange(2))))
    stream = expected_output(request, engine)
    resumed = stream[: rng.randrange(len(stream))]
    state = run_through(request, engine, rng, resumed)
    assert tuple(state.output) == stream
    assert engine.live_tokens == 0


@pytest.mark.parametrize("seed", range(60))
def test_passes_under_way_together_give_the_naive_stream(seed: int) -> None:
    rng = random.Random(seed)
    engine = ScriptedEngine(vocab_tokens=16, model_seed=seed)
    sampling = Sampling(temperature=rng.choice([0.0, 0.8]), repetition_penalty=rng.choice([1.0, 1.3]), seed=seed)
    request = request_of("c", prompt=(1, 2, 3), max_new_tokens=rng.randrange(1, 30), sampling=sampling)
    request = replace(request, eos=tuple(rng.sample(range(16), rng.randrange(2))))
    stream = expected_output(request, engine)
    sequence = engine.open(sampling=request.sampling, prompt_tokens=3)
    state = unfed(request, sequence=sequence)
    under_way: deque[tuple[Row, Sequence[Choice]]] = deque()
    together, finish = 0, None
    row = state.prefill_row(3)
    # The engine computes in the order in which rows are fed, as stages do; what it found is known later.
    under_way.append((row, engine.forward([row])[0].choices))
    while finish is None:
        draft = random_draft(rng, stream[len(state.output) :])
        if state.stage is RequestStage.DECODE:
            state.tree.attach(
                state.tree.root.digest, state.tree.position, draft, [rng.randrange(1, 4) for _ in draft]
            )
            limit = state.tree.position + state.tokens_left - 1
            chosen: list[TreeNode] = []
            for node in state.tree.walk():
                is_possible = node.parent in (*state.fed, *chosen, state.tree.root) and node.position < limit
                if node not in state.fed and is_possible and rng.random() < 0.5:
                    chosen.append(node)
            if chosen or not state.is_pending_fed:
                row = state.decode_row(chosen)
                under_way.append((row, engine.forward([row])[0].choices))
        together = max(together, len(under_way))
        while under_way and (len(under_way) > 5 or rng.random() < 0.4) and finish is None:
            step = state.judge(*under_way.popleft())
            if step.tokens:
                engine.keep(sequence, step.accepted_nodes)
                engine.prune(sequence, state.commit(step))
                finish = step.finish
    assert tuple(state.output) == stream
    assert together > 1 or len(stream) < 12
    engine.release(sequence)
    assert engine.live_tokens == 0


def charge(state: VerifierRequest, *, spent_s: float, nodes: int, tokens: tuple[int, ...] = (10,)) -> None:
    """A pass of `spent_s` where a plain one should take 0.1 s."""
    verdict = Verdict(b"", 0, tokens, bytes(len(tokens)), (0,), 0, None)
    state.charge(verdict, nodes=nodes, spent_s=spent_s, plain_pass_s=0.1)


def test_a_slow_machine_is_not_a_debt_of_the_drafts() -> None:
    state = state_of(request_of("c"))
    state.account = SpeculationAccount()
    for _ in range(100):
        charge(state, spent_s=0.15, nodes=0)
    assert state.may_speculate
    charge(state, spent_s=0.15, nodes=3, tokens=(10, 11))
    assert state.may_speculate


def test_drafts_that_bring_nothing_are_a_debt() -> None:
    state = state_of(request_of("c"))
    state.account = SpeculationAccount()
    charge(state, spent_s=0.25, nodes=8)
    assert not state.may_speculate
