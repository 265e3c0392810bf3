"""What the page makes of proofs is what `Evidence` makes of them, and its rule of audits is the library's.

The page's own code is run by Node.js, which has the signatures of a browser.
"""

import json
import random
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_p2p.trust.audit_rule import ROUNDING, accuses, most_by_chance
from cosine_p2p.trust.evidence import Evidence
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.likelihoods import Likelihood, LikelyToken, told_digest
from cosine_protocol.messages import AskAudit, AuditFinding, AuditVerdict, Transcript
from cosine_protocol.request import (
    AskedLogprobs,
    Constraint,
    ConstraintKind,
    Request,
    Sampling,
    Shaping,
    TokenBias,
)
from cosine_protocol.statements import sign_transcript, sign_verdict
from tests.cosine_p2p.samples import identity_of
from tests.cosine_p2p.trust.test_audit_rule import FORGERIES
from tests.node.page.test_build import WEB, needs_tools
from tests.protocol.samples import request_of

pytestmark = needs_tools

SCRIPT: Final = """
import { readFileSync } from "node:fs";
const { checkProof, readProof } = await import(process.argv[2]);
const { accuses, mostByChance } = await import(process.argv[3]);
const asked = JSON.parse(readFileSync(0, "utf-8"));
const proofs = [];
for (const proof of asked.proofs) {
  try {
    proofs.push((await checkProof(readProof(JSON.stringify(proof)))).state);
  } catch (error) {
    proofs.push("refused");
  }
}
const chances = asked.means.map(mostByChance);
const accusations = asked.verdicts.map(([verdict, request]) => accuses(verdict, request));
console.log(JSON.stringify({ proofs, chances, accusations }));
"""

AUTHOR: Final = identity_of(1)
WORDS: Final = (3, 5, 8, 13, 21, 34, 55, 89)
LIKELY: Final = Likelihood(700_000, (LikelyToken(3, 700_000), LikelyToken(7, 900_000)))
SHAPING: Final = Shaping(
    presence_penalty=0.5,
    frequency_penalty=-1.25,
    logit_bias=(TokenBias(7, 2.5), TokenBias(9, -100.0)),
    bad_words=((1, 2), (3,)),
    min_tokens=4,
    held_back=(2,),
)
CONSTRAINT: Final = Constraint(ConstraintKind.REGEX, "[a-z]+ ü", (2,))
REQUESTS: Final = {
    "greedy": request_of(sampling=Sampling()),
    "sampled": request_of(),
    "a large seed": request_of(sampling=Sampling(temperature=0.7, seed=(1 << 64) - 1)),
    "shaped": request_of(sampling=Sampling(shaping=SHAPING)),
    "constrained": request_of(sampling=Sampling(temperature=1.0, constraint=CONSTRAINT)),
    "both": request_of(sampling=Sampling(shaping=SHAPING, constraint=CONSTRAINT)),
    "likelihoods": request_of(logprobs=AskedLogprobs(2)),
    "likelihoods of the prompt": request_of(logprobs=AskedLogprobs(2, of_prompt=True)),
    "another numerics": request_of(numerics="gguf:Q4_1+llama.cpp"),
    "a long prompt": request_of(prompt=tuple(range(300))),
}


@cache
def page_code(folder: Path) -> tuple[str, str]:
    """The modules of the page that check proofs, each built by itself."""
    for name in ("proof", "audit_rule"):
        command = ("node_modules/.bin/esbuild", f"src/proof/{name}.ts", "--bundle", "--format=esm")
        subprocess.run([*command, "--log-level=error", f"--outfile={folder / name}.mjs"], cwd=WEB, check=True)
    (folder / "run.mjs").write_text(SCRIPT)
    return str(folder / "proof.mjs"), str(folder / "audit_rule.mjs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


def asked(
    folder: Path, *, proofs: Sequence[Any] = (), means: Sequence[float] = (), verdicts: Sequence[Any] = ()
) -> Any:
    """What the page's code makes of all that."""
    question = json.dumps({"proofs": proofs, "means": means, "verdicts": verdicts})
    command = ["node", str(folder / "run.mjs"), *page_code(folder)]
    done = subprocess.run(command, input=question, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def claim_of(request: Request, *, first: int = 0) -> AskAudit:
    """What the author has signed of a request, after so many tokens of another."""
    d_0 = request_digest(request)
    likelihoods, told = None, None
    if request.logprobs is not None:
        of_prompt = len(request.prompt) - 1 if request.logprobs.of_prompt and not first else 0
        likelihoods = (LIKELY,) * (of_prompt + len(WORDS) - first)
        told = told_digest(likelihoods)
    transcript = Transcript(first, len(WORDS), roll_digest(d_0, WORDS), told)
    signed = sign_transcript(AUTHOR, transcript, d_0=d_0)
    return AskAudit(0, request, WORDS, AUTHOR.peer_id, signed, likelihoods)


def judged(claim: AskAudit, *different: int, stages: tuple[str, ...] | None = None, place: str = "") -> Evidence:
    """The evidence with a verdict of one auditor for each number of differences."""
    d_0, piece = request_digest(claim.request), Evidence.of(claim)
    gap = None if claim.likelihoods is None else 0.0
    for auditor, count in enumerate(different, 2):
        findings = tuple(AuditFinding(position, 1, 1e6) for position in range(count))
        verdict = AuditVerdict(
            AUTHOR.peer_id,
            0,
            len(WORDS),
            roll_digest(d_0, WORDS),
            len(WORDS) - count,
            0,
            count,
            findings,
            widest_gap=gap,
            mean_gap=gap,
            stages=stages,
        )
        answer = sign_verdict(identity_of(auditor), verdict, number=auditor, d_0=d_0)
        piece = piece.stated(identity_of(auditor).peer_id, answer, place=place)
    return piece


def state_here(piece: Evidence) -> str:
    try:
        return str(piece.open().state)
    except RemoteProtocolError:
        return "refused"


def test_proofs_of_all_kinds_of_requests_come_to_the_same(folder: Path) -> None:
    pieces = [
        judged(claim_of(request), *found)
        for request in REQUESTS.values()
        for found in ((), (0,), (3,), (3, 0), (3, 3), (0, 0, 8), (8, 8, 0))
    ]
    pieces += [judged(claim_of(REQUESTS["sampled"], first=3))]
    pieces += [
        judged(claim_of(REQUESTS["greedy"]), 3, 3, 0, place="10.1.2"),
        judged(claim_of(REQUESTS["greedy"]), 3, 3),
    ]
    pieces += [judged(claim_of(REQUESTS["greedy"]), 3, 3, stages=("stage",))]
    pieces += [judged(claim_of(REQUESTS["greedy"]), 0, stages=(AUTHOR.peer_id,))]
    expected = [state_here(piece) for piece in pieces]
    assert asked(folder, proofs=[{"evidence": [asdict(piece)]} for piece in pieces])["proofs"] == expected
    assert {"unanswered", "passed", "suspected", "disputed", "convicted"} <= set(expected)


def test_forgeries_are_refused_here_and_there(folder: Path) -> None:
    pieces = list(FORGERIES.values())
    assert {state_here(piece) for piece in pieces} == {"refused"}
    proofs = [{"evidence": [asdict(piece)]} for piece in pieces]
    assert set(asked(folder, proofs=proofs)["proofs"]) == {"refused"}


def test_no_change_of_a_byte_goes_unseen(folder: Path) -> None:
    rng = random.Random(7)
    whole = judged(claim_of(REQUESTS["both"]), 0, 3)
    pieces = []
    for _ in range(150):
        letters = list(whole.claim)
        at = rng.randrange(len(letters))
        letters[at] = rng.choice([letter for letter in "ABCDwxyz0189+/" if letter != letters[at]])
        pieces.append(replace(whole, claim="".join(letters)))
    expected = [state_here(piece) for piece in pieces]
    assert asked(folder, proofs=[{"evidence": [asdict(piece)]} for piece in pieces])["proofs"] == expected
    assert expected.count("refused") > 140


def test_what_chance_explains_is_the_same_number(folder: Path) -> None:
    means = [0.0, 1e-9, 1e-4, 0.003, 0.1, 0.9, 2.0, 7.5, 40.0, 150.0, 1000.0, 2621.44, 50_000.0]
    assert asked(folder, means=means)["chances"] == [most_by_chance(mean) for mean in means]


def test_a_verdict_accuses_here_where_it_accuses_there(folder: Path) -> None:
    rng = random.Random(11)
    verdicts, expected = [], []
    for _ in range(400):
        numerics = rng.choice([*ROUNDING, "bfloat16/int8", "gguf:Q8_0+llama.cpp", "gguf:Q4_K+llama.cpp", "other"])
        sampling = Sampling(
            temperature=rng.choice((0.0, 0.5, 1.0)), top_k=rng.choice((0, 20)), top_p=rng.choice((1.0, 0.9))
        )
        request = request_of(numerics=numerics, sampling=sampling)
        tokens, different = rng.choice((40, 400, 4000)), rng.randrange(0, 12)
        near_ties = rng.choice((0, 1, 5, 40))
        gaps = [rng.choice((1e-5, 1e-4, 2e-4, 0.02, 0.2, 0.5, 0.7, 2.0, 1e6)) for _ in range(different)]
        found = tuple(AuditFinding(place, 1, gap) for place, gap in enumerate(gaps))
        equal = tokens - different - near_ties
        if equal < 0:
            continue
        verdict = AuditVerdict("author", 0, tokens, bytes(16), equal, near_ties, different, found)
        expected.append(accuses(verdict, request))
        said = {"first": 0, "tokens": tokens, "nearTies": near_ties, "different": different}
        own = {"widestGap": None, "meanGap": None, "findings": [asdict(one) for one in found]}
        of = {"temperature": sampling.temperature, "topK": sampling.top_k, "topP": sampling.top_p, "minP": 0}
        verdicts.append([said | own, of | {"numerics": numerics, "prompt": [1], "logprobs": None}])
    assert asked(folder, verdicts=verdicts)["accusations"] == expected
    assert 50 < sum(expected) < len(expected) - 50
