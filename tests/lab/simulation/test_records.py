"""The records of simulated nodes are those that real ones of the same facts would announce."""

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.records import DIGEST, facts_of, record_of
from cosine_node.engine.curve import CostCurve
from cosine_protocol.identity import Identity
from cosine_protocol.records import GenerationDefaults, Role, open_record, seal_record


@pytest.mark.parametrize("role", [Role.VERIFIER, Role.DRAFTER])
def test_a_reader_accepts_it_and_only_verifiers_speak_of_the_target_s_defaults(role: Role) -> None:
    owner, defaults = Identity.from_seed(bytes(32)), GenerationDefaults(do_sample=True)
    facts = facts_of((3,), defaults)
    record = record_of(
        owner.peer_id,
        role,
        facts,
        engine=ScriptedEngine(),
        curve=CostCurve(((1, 0.05),)),
        domain="code",
        emulated="60/6",
        load_requests=2,
        sequence=5,
        now_s=100.0,
        coordinate=None,
    )
    assert open_record(seal_record(record, owner, key="k"), key="k", owner=owner.peer_id, now_s=101.0) == record
    assert (record.target_digest, record.tokenizer_digest, record.pass_us) == (facts.digest(), DIGEST, 50_000)
    assert record.generation_defaults == (defaults if role is Role.VERIFIER else None)
