"""The recorded texts of a drafter: none without permission, and one stream of each text."""

import random
from dataclasses import replace

import pytest

from cosine_node.drafter.observer import NO_GUESS
from cosine_train.learning.streams import (
    MAX_PROMPT_TOKENS,
    MAX_TOKENS,
    MIN_TOKENS,
    RETURN_S,
    StreamRecord,
    StreamRecords,
    VerifiedStream,
)
from tests.node.peers import request_of

REQUEST = request_of("client")
D_0 = bytes(16)


def noted(record: StreamRecord, tokens: list[int], *, guess: int = NO_GUESS) -> StreamRecord:
    for position, token in enumerate(tokens):
        record.note(position, token, guess=guess)
    return record


def followed(records: StreamRecords) -> StreamRecord:
    record = records.follow(REQUEST, D_0)
    assert record is not None
    return record


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_told_in_which_order_the_stream_is_the_text_with_the_first_guess_of_each_token(
    seed: int,
) -> None:
    rng = random.Random(seed)
    text = [rng.randrange(50) for _ in range(rng.randrange(1, 40))]
    record, known = StreamRecord(REQUEST), 0
    guesses: dict[int, int] = {}
    for _ in range(150):
        position = rng.choice([rng.randrange(len(text)), min(known, len(text) - 1)])
        guess = rng.choice([NO_GUESS, text[position], rng.randrange(50)])
        record.note(position, text[position], guess=guess)
        if position > known:
            continue
        known = max(known, position + 1)
        if guess != NO_GUESS and position not in guesses:
            guesses[position] = guess
    stream = record.stream()
    assert (stream is not None) == (known >= MIN_TOKENS)
    if stream is not None:
        assert stream.tokens == tuple(text[:known])
        assert stream.guesses == tuple(guesses.get(position, NO_GUESS) for position in range(known))


def test_a_client_that_tells_two_texts_of_one_request_teaches_nothing() -> None:
    record = noted(StreamRecord(REQUEST), list(range(20)))
    assert record.stream() is not None
    record.note(3, 4, guess=NO_GUESS)
    assert record.stream() is None


def test_a_long_text_costs_bounded_memory() -> None:
    record = StreamRecord(request_of("client", prompt=tuple(range(MAX_PROMPT_TOKENS + 5))))
    for position in range(MAX_TOKENS + 10):
        record.note(position, 1, guess=2)
    stream = record.stream()
    assert stream is not None
    assert (len(stream.prompt), stream.prompt[-1]) == (MAX_PROMPT_TOKENS, MAX_PROMPT_TOKENS + 4)
    assert len(stream.tokens) == len(stream.guesses) == MAX_TOKENS


def test_texts_of_other_targets_are_not_recorded() -> None:
    kept: list[VerifiedStream] = []
    other = replace(REQUEST, target_digest=bytes([7]) * 32)
    ours = StreamRecords(kept.append, target_digest=REQUEST.target_digest)
    assert ours.follow(other, D_0) is None
    assert ours.follow(REQUEST, D_0) is not None
    assert StreamRecords(kept.append).follow(other, D_0) is not None
    ours.close()
    assert kept == []


def test_a_request_that_is_followed_again_is_one_text() -> None:
    kept: list[VerifiedStream] = []
    records = StreamRecords(kept.append)
    first = noted(followed(records), list(range(10)), guess=1)
    records.leave(first, now_s=0.0)
    records.tick(now_s=RETURN_S)
    again = noted(followed(records), list(range(20)))
    assert again is first
    records.tick(now_s=10 * RETURN_S)
    assert kept == []
    records.leave(again, now_s=10 * RETURN_S)
    records.tick(now_s=11 * RETURN_S + 1)
    assert [stream.tokens for stream in kept] == [tuple(range(20))]
    assert kept[0].guesses == (*[1] * 10, *[NO_GUESS] * 10)
    assert not records.tick(now_s=0.0)
