"""`cosine-node bench here`: the choice of the measured swarm, and the command that repeats a measurement."""

from typing import Any

import pytest

from cosine_lab.commands.bench_here import MeasuredSwarm
from cosine_protocol.errors import UsageError


def swarm(**told: Any) -> MeasuredSwarm:
    running: dict[str, Any] = {
        "initial_peers": ("ADDRESS",),
        "family": None,
        "drafters": (),
        "verifier_options": {},
    }
    return MeasuredSwarm(network="n", target="zoo:target", **(running | told))


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"family": "toy"}, "omit --initial-peers"),
        ({"family": "large", "initial_peers": ()}, "--family must be toy or smol"),
        ({"verifier_options": {"engine": "torch"}}, "--engine requires --family"),
        ({"on_cores": True}, "--cores starts a swarm"),
        ({"home": "zoo:draft-code"}, "--draft-model requires --cores"),
    ],
)
def test_what_does_not_go_together_is_refused(told: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        _ = swarm(**told).cast
