"""Honest verifiers are not convicted, dishonest ones are; evidence is valid by its signatures."""

import math
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.trust import evidence
from cosine_p2p.trust.audit_rule import (
    FALSE_ALARM,
    LLAMA_ROUNDING,
    ROUNDING,
    WIDE,
    AuditState,
    accuses,
    most_by_chance,
    rounding_of,
    state_of,
)
from cosine_p2p.trust.evidence import MAX_PIECES, Evidence, EvidenceFile, Statement, evidence_of_json
from cosine_p2p.trust.voices import Opinion, Poll
from cosine_protocol.audit import MAX_AUDIT_FINDINGS, MAX_SCORE_GAP, AskAudit, Audited, AuditFinding, AuditVerdict
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.fields import MAX_NEW_TOKENS
from cosine_protocol.identity import sign
from cosine_protocol.request import AskedLogprobs, Sampling
from cosine_protocol.verify import Transcript
from tests.cosine_p2p.samples import identity_of
from tests.protocol.samples import request_of

PLAIN = Sampling()
FILTERED = Sampling(temperature=0.8, top_p=0.9)

MOST_FLIPS = rounding_of("gguf:Q4_0+llama.cpp").flip_rate * MAX_NEW_TOKENS
"""The expected near ties in the longest text, with which the probability of none underflows."""


def is_accused(
    *gaps: float,
    positions: int = 200,
    more: int = 0,
    numerics: str = "float32",
    sampling: Sampling = PLAIN,
    auditor: str | None = None,
) -> bool:
    """True if a verdict with findings of these gaps, and `more` near ties, accuses."""
    near = rounding_of(numerics).near_tie
    findings = [AuditFinding(place, 1, gap) for place, gap in enumerate(gaps)]
    verdict = AuditVerdict(
        author="author",
        first=0,
        tokens=positions,
        digest=bytes(16),
        equal=positions - len(gaps) - more,
        near_ties=more + sum(gap < near for gap in gaps),
        different=sum(gap >= near for gap in gaps),
        findings=tuple(findings[:MAX_AUDIT_FINDINGS]),
    )
    return accuses(verdict, request_of(numerics=numerics, sampling=sampling), numerics=auditor)


@pytest.mark.parametrize("numerics", ["float32", "gguf:Q4_1+llama.cpp"])
def test_log_probabilities_accuse_where_one_is_far_off_or_all_are_a_little(numerics: str) -> None:
    near = rounding_of(numerics).near_tie

    def is_accused_of(
        widest: float, mean: float, *, tokens: int, prompt_tokens: int = 0, auditor: str | None = None
    ) -> bool:
        counts: dict[str, Any] = {"equal": tokens, "near_ties": 0, "different": 0, "findings": ()}
        verdict = AuditVerdict("author", 0, tokens, bytes(16), **counts, widest_gap=widest, mean_gap=mean)
        asked = AskedLogprobs(0, of_prompt=prompt_tokens > 0)
        prompt = (1,) * (prompt_tokens + 1)
        request = request_of(numerics=numerics, prompt=prompt, logprobs=asked)
        return accuses(verdict, request, numerics=auditor)

    assert not is_accused_of(near, 0.0, tokens=200)
    assert is_accused_of(1.01 * WIDE * near, 0.0, tokens=200)
    for side in (1, -1):
        assert not is_accused_of(near, side * near / 15, tokens=200)
        assert is_accused_of(near, side * near / 13, tokens=200)
    assert is_accused_of(near, near / 15, tokens=20, prompt_tokens=300)
    # Rounding of both counts; the effect of weights quantised at load is unknown.
    other = "gguf:F16+llama.cpp"
    both = near + rounding_of(other).near_tie
    assert is_accused_of(1.01 * WIDE * both, 0.0, tokens=200, auditor=other)
    assert not is_accused_of(0.99 * WIDE * both, 0.0, tokens=200, auditor=other)
    assert not is_accused_of(3 * WIDE * near, near, tokens=200, auditor="float32/int8")
    # In the longest texts an honest mean does not accuse.
    assert not is_accused_of(near, near / 65, tokens=100_000)


@pytest.mark.parametrize("numerics", ["bfloat16", "gguf:Q4_1+llama.cpp"])
def test_one_wide_difference_accuses_and_a_narrow_one_does_not(numerics: str) -> None:
    near = rounding_of(numerics).near_tie
    assert not is_accused(numerics=numerics)
    assert not is_accused(1.5 * near, numerics=numerics)
    assert is_accused(1.01 * WIDE * near, numerics=numerics)
    assert is_accused(MAX_SCORE_GAP, numerics=numerics)


@pytest.mark.parametrize(
    ("claimed", "auditor", "explained", "wide"),
    [
        # Gaps as they were measured between honest verifiers of the embedded target and of SmolLM2.
        ("float32/int8", "float32", (0.037, 0.031, 0.011, 0.008), 8.1),
        ("float32", "float32/int8", (0.037, 0.031, 0.011, 0.008), 8.1),
        ("gguf:Q4_1+float32/float16", "gguf:Q4_1+float32", (0.0074, 0.0002), 0.1),
        ("float16/int8", "bfloat16/int8", (0.3,), 2.7),
    ],
)
def test_weights_that_only_one_rounds_explain_differences(
    claimed: str, auditor: str, explained: tuple[float, ...], wide: float
) -> None:
    assert not is_accused(*explained, numerics=claimed, auditor=auditor, positions=125)
    assert is_accused(wide, numerics=claimed, auditor=auditor, positions=125)
    if claimed != "float32/int8":
        # If both round them in the same way, they explain nothing.
        assert is_accused(*explained, numerics=claimed, auditor=claimed, positions=125)


def test_inputs_that_are_rounded_to_eight_bits_explain_differences_between_processors() -> None:
    numerics = "gguf:Q4_1+float32/int4 deterministic"
    # Gaps as they were measured after changes of the last bits of an embedding.
    assert not is_accused(0.884, 0.492, 0.413, 0.334, numerics=numerics, auditor=numerics, positions=125)
    assert is_accused(6.1, numerics=numerics, auditor=numerics, positions=125)
    assert is_accused(*[0.3] * 60, numerics=numerics, auditor=numerics, positions=125)


def test_near_ties_accuse_where_there_are_more_than_come_by_chance() -> None:
    expected = round(1000 * rounding_of("bfloat16").flip_rate)
    assert not is_accused(positions=1000, more=expected, numerics="bfloat16")
    assert is_accused(positions=1000, more=4 * expected, numerics="bfloat16")
    # The second best choice at every near tie of float32 is not rounding.
    assert is_accused(positions=1000, more=10)


def test_with_filters_a_few_wide_differences_are_explained() -> None:
    assert not is_accused(MAX_SCORE_GAP, MAX_SCORE_GAP, sampling=FILTERED, numerics="bfloat16")
    assert is_accused(*[MAX_SCORE_GAP] * 20, sampling=FILTERED, numerics="bfloat16")
    # float32 rounds more finely: one may be an accident, two are not.
    assert not is_accused(MAX_SCORE_GAP, sampling=FILTERED)
    assert is_accused(MAX_SCORE_GAP, MAX_SCORE_GAP, sampling=FILTERED)
    assert is_accused(MAX_SCORE_GAP, sampling=Sampling(temperature=0.0, top_p=0.9))


@given(st.one_of(st.floats(1e-9, 50.0), st.floats(50.0, MOST_FLIPS)))
def test_more_than_the_most_by_chance_come_with_the_stated_chance(mean: float) -> None:
    def tail(count: int) -> float:
        terms = (math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(count + 1, count + 900))
        return math.fsum(terms)

    most = most_by_chance(mean)
    assert tail(most) <= 1.001 * FALSE_ALARM
    assert most == 0 or tail(most - 1) > 0.999 * FALSE_ALARM


@pytest.mark.parametrize(
    ("accusations", "state"),
    [
        ([], AuditState.UNANSWERED),
        ([False], AuditState.PASSED),
        ([True], AuditState.SUSPECTED),
        ([True, False], AuditState.DISPUTED),
        ([True, True], AuditState.CONVICTED),
        ([True, True, False], AuditState.CONVICTED),
        ([True, True, False, False], AuditState.DISPUTED),
        ([False, False], AuditState.PASSED),
    ],
)
def test_a_conviction_takes_two(accusations: list[bool], state: Any) -> None:
    opinions = [Opinion(f"judge {number}", accuses) for number, accuses in enumerate(accusations)]
    assert state_of(Poll.of(opinions)) is state


def test_rounding_depends_on_the_type_of_arithmetic() -> None:
    assert rounding_of("float32") == ROUNDING["float32"]
    assert rounding_of("gguf:Q4_1+bfloat16/int8") == rounding_of("bfloat16/int8") == ROUNDING["bfloat16"]
    # llama.cpp also rounds activations to few bits.
    assert rounding_of("gguf:Q8_0+llama.cpp") == LLAMA_ROUNDING["Q8_0"]


AUTHOR = identity_of(1)
TOKENS = (3, 5, 8)


def claim_of(nonce: int = 0) -> AskAudit:
    request = request_of(nonce=nonce.to_bytes(16, "big"))
    d_0 = request_digest(request)
    transcript = Transcript(0, len(TOKENS), roll_digest(d_0, TOKENS))
    return AskAudit(0, request, TOKENS, AUTHOR.peer_id, sign(AUTHOR, transcript, digest=d_0))


def answer_of(claim: AskAudit, auditor: int, *, different: int) -> Audited:
    d_0 = request_digest(claim.request)
    digest = roll_digest(d_0, TOKENS)
    findings = tuple(AuditFinding(position, 1, 1e6) for position in range(different))
    verdict = AuditVerdict(AUTHOR.peer_id, 0, 3, digest, 3 - different, 0, different, findings)
    return Audited(auditor, *astuple(sign(identity_of(auditor), verdict, digest=d_0)))


def piece_of(*different: int, nonce: int = 0) -> Evidence:
    claim = claim_of(nonce)
    piece = Evidence.of(claim)
    for auditor, count in enumerate(different, 2):
        piece = piece.stated(identity_of(auditor).peer_id, answer_of(claim, auditor, different=count))
    return piece


HONEST = piece_of(3, 3)
FORGERIES = {
    "of another auditor": replace(
        HONEST, statements=(replace(HONEST.statements[0], auditor=identity_of(9).peer_id),)
    ),
    "about another text": replace(HONEST, claim=piece_of(nonce=5).claim),
    "said twice": replace(HONEST, statements=HONEST.statements[:1] * 2),
    "by the author": Evidence.of(claim_of()).stated(AUTHOR.peer_id, answer_of(claim_of(), 1, different=0)),
    "no base64": replace(HONEST, claim="§"),
    "no message": replace(HONEST, claim="AAAA"),
    "another message": replace(HONEST, claim=HONEST.statements[0].answer),
    "no answer": replace(HONEST, statements=(Statement(identity_of(2).peer_id, HONEST.claim),)),
}


@pytest.mark.parametrize("piece", FORGERIES.values(), ids=FORGERIES)
def test_what_is_forged_proves_nothing(piece: Evidence, tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError):
        piece.open()
    file = EvidenceFile(tmp_path / "evidence.json")
    file.add(piece)
    assert file.convicted() == frozenset()


def test_a_file_keeps_convictions_for_the_next_run(tmp_path: Path) -> None:
    file = EvidenceFile(tmp_path / "state" / "evidence.json")
    assert file.read() == () and file.convicted() == frozenset()
    broken: list[object] = [None, {}, [None], [{"claim": 1, "statements": []}], [{"claim": "x"}]]
    for value in broken:
        assert evidence_of_json(value) == (), "what has another form is left out"
    file.add(piece_of(3))
    assert file.convicted() == frozenset()
    file.add(piece_of(3, 3))
    assert EvidenceFile(file.path).read() == (piece_of(3), piece_of(3, 3))
    assert EvidenceFile(file.path).convicted() == {AUTHOR.peer_id}


def test_a_file_forgets_the_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = EvidenceFile(tmp_path / "evidence.json")
    pieces = [piece_of(nonce=number) for number in range(MAX_PIECES + 2)]
    for piece in pieces:
        file.add(piece)
    assert file.read() == tuple(pieces[2:])
    monkeypatch.setattr(evidence, "MAX_FILE_BYTES", 4000)
    file.add(pieces[0])
    kept = file.read()
    assert 0 < len(kept) < 10 and kept[-1] == pieces[0] and file.path.stat().st_size <= 4000
