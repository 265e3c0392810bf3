"""A full disk, for processes in their own mount namespace."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(400)]
UNSHARE = ("unshare", "--mount")


def test_a_full_disk_stops_nobody_and_is_said(tmp_path: Path) -> None:
    is_possible = os.geteuid() == 0 and shutil.which("unshare") is not None
    if not is_possible or subprocess.run((*UNSHARE, "true"), capture_output=True, check=False).returncode:
        pytest.skip("only root may make namespaces, with `unshare`")
    command = (*UNSHARE, sys.executable, "-m", "tests.e2e.full_disk_scene", str(tmp_path))
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=360, check=False, env=environment)
    assert done.returncode == 0, done.stderr
