"""`cosine-node audit`: what it reads, what it tells of stored evidence, and whom it asks about a stored text."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_node.cli.audit import check, judged
from cosine_node.terminal.printing import json_safe
from cosine_p2p.trust.evidence import Evidence, EvidenceFile, evidence_of_json
from cosine_protocol.records import Role
from tests.cosine_p2p.trust.test_audit_rule import FORGERIES, piece_of
from tests.node.cli.conftest import Run
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
    assert second.endswith("nobody has judged it.")
    told = run("audit", written(tmp_path, FORGERIES["about another text"]), "--offline", "--json")
    assert (told.code, "signature" in json.loads(told.out)["checked"][0]["problem"]) == (1, True)


def test_without_a_file_it_reads_what_is_kept_here(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    told = run("audit", "--offline")
    assert (told.code, "No evidence is kept" in told.err) == (2, True)
    EvidenceFile().add(piece_of(3, 3))
    told = run("audit", "--offline")
    assert (told.code, "most of its judges accuse" in told.out) == (0, True)


@pytest.mark.parametrize("content", ["", "[]", '{"text": "a"}', '{"audit": null}', '{"audit": {"evidence": [1]}}'])
def test_a_file_without_evidence_is_refused_in_a_sentence(run: Run, content: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(content)
    told = run("audit", str(file), "--offline")
    assert (told.code, str(file) in told.err) == (2, True)


@pytest.mark.parametrize(("is_honest", "state"), [(True, "passed"), (False, "convicted")])
def test_a_stored_text_is_judged_by_others(
    is_honest: bool, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def scene() -> tuple[Evidence, ...]:
        async with SimulatedSwarm() as swarm:
            model_seed = {} if is_honest else {"model_seed": 9}
            await swarm.verifier(ScriptedEngine(vocab_tokens=VOCAB_TOKENS, **model_seed))
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
