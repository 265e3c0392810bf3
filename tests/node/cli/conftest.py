"""Runs commands in this process, without the user's settings and files."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from cosine_cli.start import main


class Told(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Told]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("COSINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COSINE_LAN", "0")
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("cosine_cli.configuration.user_config_dir", lambda _: str(tmp_path))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:

    def told(*arguments: str) -> Told:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code is None or isinstance(exit_.value.code, int)
        return Told(exit_.value.code or 0, *capsys.readouterr())

    return told
