"""The machine of a demo: its two cores."""

import os
import threading

import pytest

from cosine_node.demo.machine import Cores, on_core


def test_the_verifier_gets_a_core_and_all_others_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {7, 2, 5})
    assert Cores.find() == Cores(verifier=2, others=5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert Cores.find() is None


def test_what_starts_on_a_core_stays_there() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    seen: list[set[int]] = []
    with on_core(core):
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen == [{core}]
    with on_core(None):
        assert os.sched_getaffinity(0) == before
