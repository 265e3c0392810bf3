"""One round of each fault that another test does not have: the text is the target's, whatever dies or stops."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.fault_rounds import Fault, FaultSwarm, Victim, rounds_of, swarm_of

# `test_faults` kills verifiers and drafters in every check.
pytestmark = [pytest.mark.network, pytest.mark.soak, pytest.mark.timeout(300)]


def test_a_text_is_right_after_every_fault(tmp_path: Path) -> None:
    def rows(swarm: FaultSwarm, fault: Fault, *victims: Victim) -> list[dict[str, object]]:
        return asyncio.run(rounds_of(swarm, [fault], victims, rounds=1, say=print))

    with swarm_of(tmp_path) as swarm:
        killed = (Victim.VERIFIERS_DAEMON, Victim.DRAFTERS_DAEMONS, Victim.BOOTSTRAP, Victim.CLIENTS_DAEMONS)
        played = [
            *rows(swarm, Fault.STOPPED, Victim.VERIFIER, Victim.DRAFTERS),
            *rows(swarm, Fault.KILLED, *killed),
        ]
    assert [(row["victim"], row["errors"]) for row in played if not row["right"]] == []
    assert [(row["victim"], row["failed_beside"]) for row in played if row["failed_beside"]] == []
