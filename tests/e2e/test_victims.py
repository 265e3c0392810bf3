"""Records that name a victim's addresses turn clients against nobody, counted at the victim's own sockets."""

import json
import os
import subprocess

import pytest

from cosine_p2p.transport.addresses import MAX_TRIES
from tests.e2e.victims import INSIDE, TEXTS, command

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]


@pytest.mark.soak
def test_a_victim_is_dialled_a_few_times_and_never_at_private_addresses() -> None:
    inside = command()
    if inside is None:
        pytest.skip("a network of its own needs unshare, ip and the right to use them")
    done = subprocess.run(inside, env=os.environ | {INSIDE: "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    quiet, light, full = json.loads(done.stdout)
    assert [each["right"] for each in (quiet, light, full)] == [TEXTS] * 3
    assert quiet["dials"] == {}
    # The victim was in reach, and was left alone after that.
    assert 0 < light["dials"]["public"] <= MAX_TRIES
    assert light["dials"].keys() == {"public"} and full["dials"] == {}, (light, full)
