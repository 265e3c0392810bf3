"""CPU affinity of measured processes."""

import os
import threading

from cosine_lab.emulation.cores import on_core


def test_what_starts_on_a_core_stays_there() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    seen: list[set[int]] = []
    with on_core(core):
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen == [{core}]
    assert os.sched_getaffinity(0) == before
