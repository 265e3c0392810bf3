"""The machine of a demo: its two cores, and what is known of its processor."""

import os
import threading
from pathlib import Path

import pytest

from cosine_node.demo import machine
from cosine_node.demo.machine import Cores, has_fast_bfloat16, on_core, processor_name


def test_the_verifier_gets_a_core_and_all_others_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {7, 2, 5})
    assert Cores.find() == Cores(verifier=2, others=5)


def test_with_one_core_or_no_choice_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert Cores.find() is None
    monkeypatch.delattr(os, "sched_setaffinity")
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


def test_the_processor_is_named_and_what_it_is_good_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A Fast One\nflags\t\t: fpu amx_bf16\n\nprocessor\t: 1\n")
    monkeypatch.setattr(machine, "CPU_INFO", info)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert processor_name() == "A Fast One, 2 cores"
    assert has_fast_bfloat16()
    info.write_text("model name\t: An Old One\nflags\t\t: fpu avx2\n")
    assert not has_fast_bfloat16()
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "none")
    assert processor_name().endswith(", 2 cores")
    assert not has_fast_bfloat16()
