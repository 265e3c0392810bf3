"""Which test files run in one process, and in which order, where several processes run tests (`pytest -n`)."""

from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

STARTING_PROCESSES: Final = ("tests/docs/test_commands.py", "tests/e2e/", "tests/packaging/")
PROCESSES: Final = "processes"


class SwarmsInTurn(LoadFileScheduling):  # type: ignore[misc]
    """Distributes whole files in the order they are collected in, and to one worker all those that start processes.

    The nodes that the tests of a folder share are started once then, and two swarms are never at work together.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        # By itself xdist begins with files of many tests and ends with those of few, which are the longest here.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return PROCESSES if nodeid.startswith(STARTING_PROCESSES) else str(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        # It takes a third of all time: begun after others, it would end alone.
        if PROCESSES in self.workqueue:
            self.workqueue.move_to_end(PROCESSES, last=False)
        super()._assign_work_unit(node)
