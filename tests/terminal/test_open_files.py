"""A node raises its limit of open files, and warns if it is low."""

import subprocess
import sys

import pytest

ASK = """
import logging, resource
from cosine_terminal.open_files import raise_open_files
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_open_files(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "found", "is_told"),
    [(256, 2048, 2048, False), (512, 512, 512, True), (1024, 1024, 1024, False)],
)
def test_the_soft_limit_becomes_the_hard_one(soft: int, hard: int, found: int, is_told: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(soft=soft, hard=hard)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(found), str(found), str(hard)]
    assert bool(done.stderr) is is_told
