"""Faults of everything, one upon the other: no text is wrong, fails or hangs for who knows two addresses."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.chaos import planned, play, scene_in

pytestmark = [pytest.mark.network, pytest.mark.soak, pytest.mark.timeout(900)]

MINUTES: Final = 2.0


def test_every_text_is_right_whatever_dies_or_stops(tmp_path: Path) -> None:
    with scene_in(tmp_path) as scene:
        found = asyncio.run(play(scene, planned(seed=0, minutes=MINUTES), minutes=MINUTES))
    assert (found.wrong, found.hung, found.errors) == ([], [], [])
    assert found.texts > 0 and found.events
