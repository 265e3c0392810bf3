"""No command of a test reads the settings of the person who runs it."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("COSINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("cosine_node.cli.configuration.user_config_dir", lambda _: str(tmp_path))
