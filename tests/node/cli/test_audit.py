"""`cosine audit`: evidence in files, local judgement, and judgement by a swarm."""

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cosine_cli.judged_texts import check, judged
from cosine_engine import zoo
from cosine_engine.models.served import ModelNames
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_p2p.trust.evidence import Evidence, EvidenceFile, evidence_of_json
from cosine_protocol.records import Role
from cosine_protocol.request import Request, Sampling
from cosine_terminal.printing import json_safe
from tests.cosine_p2p.samples import identity_of
from tests.cosine_p2p.trust.test_audit_rule import FORGERIES, piece_of
from tests.engine.random_serving import Asked, serve_alone
from tests.engine.staged import whole_engine
from tests.node.cli.conftest import Run
from tests.node.peers import request_of
from tests.node.verifier.replaying import claim_of
from tests.swarm.reference import VOCAB_TOKENS, target_engine


def written(folder: Path, *pieces: Evidence) -> str:
    """A file like that of `generate --json`."""
    file = folder / "generation.json"
    file.write_text(json.dumps({"text": "a", "audit": {"state": "off", "evidence": [asdict(p) for p in pieces]}}))
    return str(file)


def test_evidence_is_checked_offline_and_what_is_forged_proves_nothing(run: Run, tmp_path: Path) -> None:
    told = run("audit", written(tmp_path, piece_of(3, 3), piece_of()), "--offline")
    first, second = told.out.splitlines()
    assert told.code == 0
    assert "most of its judges accuse" in first and "accuses: 0 equal, 0 near ties, 3 different" in first
    assert second.endswith("not judged yet.")
    told = run("audit", written(tmp_path, FORGERIES["about another text"]), "--offline", "--json")
    assert (told.code, "signature" in json.loads(told.out)["checked"][0]["problem"]) == (1, True)


@pytest.mark.parametrize("place", ["--offline", "--local"])
def test_a_file_with_other_tokens_than_were_signed_proves_nothing(run: Run, tmp_path: Path, place: str) -> None:
    file = Path(written(tmp_path, signed_text()))
    _, signed = written_text()
    for tokens, code in (([*signed], 0), ([signed[0] + 1, *signed[1:]], 1)):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"token_ids": tokens}))
        told = run("audit", str(file), place)
        assert (told.code, "the tokens of the file are not those" in told.out) == (code, code == 1)


def test_an_endpoint_is_judged_against_the_model_that_is_named(run: Run) -> None:
    told = run("audit", "endpoint", "http://127.0.0.1:1/v1")
    assert (told.code, told.err) == (2, "Error: Name the model that the endpoint claims to run with --model.\n")


def test_without_a_file_it_reads_the_stored_evidence(run: Run) -> None:
    told = run("audit", "--offline")
    assert (told.code, "No evidence is kept" in told.err) == (2, True)
    EvidenceFile().add(piece_of(3, 3))
    told = run("audit", "--offline")
    assert (told.code, "most of its judges accuse" in told.out) == (0, True)


@cache
def written_text() -> tuple[Request, tuple[int, ...]]:
    folder = zoo.location("target")
    facts = ModelNames.read("zoo:target", "zoo:target", folder).facts
    engine = whole_engine(folder, pool_tokens=512)
    request = request_of(
        identity_of(8).peer_id,
        prompt=(5, 6, 7, 8),
        max_new_tokens=24,
        target_digest=facts.digest(),
        tokenizer_digest=facts.tokenizer_digest,
        numerics=engine.numerics,
        sampling=Sampling(temperature=1.0, seed=3),
    )
    text = serve_alone(engine, Asked([*request.prompt], request.sampling), 24)
    return request, tuple(token for token, _ in text)


def signed_text(*, lie_at: int | None = None, **fields: Any) -> Evidence:
    """That text as a verifier signs it; `lie_at` is the place of a token that its author changed."""
    request, text = written_text()
    tokens = [token if place != lie_at else (token + 1) % 500 for place, token in enumerate(text)]
    return Evidence.of(claim_of(replace(request, **fields), tokens))


def test_a_machine_with_the_weights_judges_by_itself(run: Run, tmp_path: Path) -> None:
    told = run("audit", written(tmp_path, signed_text()), "--local")
    assert (told.code, "this machine would have written the same; 24 equal" in told.out) == (0, True)
    told = run("audit", written(tmp_path, signed_text(lie_at=12)), "--local", "--model", "zoo:target", "--json")
    [checked] = json.loads(told.out)["checked"]
    assert (told.code, checked["state"], checked["is_own_word"]) == (1, "convicted", True)


def test_a_machine_without_the_weights_says_which_are_wanted(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path, signed_text(target_digest=bytes(32)))
    told = run("audit", file, "--local")
    assert (told.code, f"zoo:target is not the target of this text, {bytes(32).hex()}" in told.err) == (2, True)
    told = run("audit", file, "--local", "--model", str(tmp_path / "nowhere"))
    assert (told.code, "nowhere" in told.err) == (2, True)
    told = run("audit", file, "--local", "--offline")
    assert (told.code, "give one of them" in told.err) == (2, True)


@pytest.mark.parametrize("content", ["", "[]", '{"text": "a"}', '{"audit": null}', '{"audit": {"evidence": [1]}}'])
def test_a_file_without_evidence_is_refused_in_a_sentence(run: Run, content: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(content)
    told = run("audit", str(file), "--offline")
    assert (told.code, str(file) in told.err) == (2, True)


@pytest.mark.parametrize(("is_honest", "state"), [(True, "passed"), (False, "convicted")])
def test_a_stored_text_is_judged_by_others(is_honest: bool, state: str) -> None:
    async def scene() -> tuple[Evidence, ...]:
        async with SimulatedSwarm() as swarm:
            model_seed = 0 if is_honest else 9
            await swarm.verifier(ScriptedEngine(vocab_tokens=VOCAB_TOKENS, model_seed=model_seed))
            client = await swarm.client(strategy="plain")
            done = await client.generate("012", max_new_tokens=40)
            assert done.audit is not None and done.audit.state == "off"
            assert evidence_of_json(json_safe(done)["audit"]["evidence"]) == done.audit.evidence
            for _ in range(2):
                await swarm.verifier(target_engine())
            for record in await swarm.directory.find(Role.VERIFIER, TARGET):
                await swarm.directory.announce(record, [record.target_digest.hex()])
            asking = swarm.client_swarm(numbered_identity(77))
            return await judged(asking, done.audit.evidence, ())

    [piece] = run_virtual(scene())
    assert check(piece).state == state
