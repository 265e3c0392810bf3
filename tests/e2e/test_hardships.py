"""What nobody intends, on processes in namespaces of their own: a full disk, and a machine that changes address."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(400)]


def play(scene: str, folder: Path, *namespaces: str) -> str:
    """Play a scene in new namespaces, which end with it; what it says."""
    unshare = ("unshare", *namespaces)
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("only root may make namespaces here, with `ip` and `unshare`")
    if subprocess.run((*unshare, "true"), capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make namespaces")
    command = (*unshare, sys.executable, "-m", f"tests.e2e.{scene}", str(folder))
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=360, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_full_disk_stops_nobody_and_is_said(tmp_path: Path) -> None:
    play("full_disk_scene", tmp_path, "--mount")


# A minute, most of it the start of three nodes.
@pytest.mark.soak
def test_a_verifier_that_changes_its_address_is_found_again(tmp_path: Path) -> None:
    play("moving_scene", tmp_path, "--net")
