"""Installs each client into its own folder and runs its program there."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.clients.catalogue import Client, Registry

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = Path(__file__).parent / "programs"
INSTALL_TIMEOUT_S: Final = 1800
"""The largest client has about a hundred packages."""
JOBS_TIMEOUT_S: Final = 1200
"""The timeout for one client, with a model on a CPU."""


class NotInstalled(Exception):
    """A client's packages could not be installed; the message is the last line of the output."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job: what it has `shown`, or the reason why it `failed`."""

    job: str
    shown: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Installation:
    """An installed client and its folder."""

    client: Client
    folder: Path

    @classmethod
    def make(cls, client: Client, cache: Path) -> "Installation":
        """Install a client below a cache, unless it is there. Raises `NotInstalled`."""
        made = cls(client, cache / client.folder)
        done = made.folder / "installed.json"
        wanted = json.dumps(client.packages)
        if not done.is_file() or done.read_text() != wanted:
            shutil.rmtree(made.folder, ignore_errors=True)
            made.folder.mkdir(parents=True)
            if client.registry is Registry.PYPI:
                _do(sys.executable, "-m", "venv", str(made.folder))
                _do(str(made.python), "-m", "pip", "install", "--quiet", *client.packages)
            else:
                _do("npm", "install", "--prefix", str(made.folder), "--no-audit", "--no-fund", *client.packages)
            done.write_text(wanted)
        return made

    @property
    def programs(self) -> Path:
        """The folder of the client's commands."""
        is_python = self.client.registry is Registry.PYPI
        return self.folder / ("bin" if is_python else "node_modules/.bin")

    @property
    def python(self) -> Path:
        """The Python for a client's program: the client's own, or else ours."""
        return self.programs / "python" if self.client.registry is Registry.PYPI else Path(sys.executable)

    @property
    def version(self) -> str:
        package = self.client.packages[0].partition("[")[0]
        if self.client.registry is Registry.NPM:
            described = json.loads((self.folder / "node_modules" / package / "package.json").read_text("utf-8"))
            return str(described["version"])
        ask = f"from importlib.metadata import version; print(version({package!r}))"
        return subprocess.run((self.python, "-c", ask), capture_output=True, text=True, check=True).stdout.strip()

    def jobs_done(self, place: Sequence[str], home: Path) -> list[Outcome]:
        """The outcomes of its jobs. `place` is a gateway's address, model and key, `home` a folder for settings.

        Of our environment it gets where programs are, and nothing else: no key and no setting of whoever runs
        this.
        """
        program = self.client.program
        runner: tuple[str, ...] = ("node", str(PROGRAMS / program))
        if not program.endswith(".mjs"):
            runner = (str(self.python), "-m", f"tests.clients.programs.{program}")
        home.mkdir(parents=True)
        report = home / "report.jsonl"
        path = os.pathsep.join((str(self.programs), os.environ["PATH"]))
        places = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                (*runner, str(report), *place),
                cwd=self.folder,
                env=places | dict(self.client.environment),
                capture_output=True,
                text=True,
                timeout=JOBS_TIMEOUT_S,
                check=False,
            )
            ending = "" if done.returncode == 0 else _last_line(done.stderr)
        except subprocess.TimeoutExpired:
            ending = f"not done after {JOBS_TIMEOUT_S} s"
        lines = report.read_text("utf-8").splitlines() if report.is_file() else ()
        outcomes = [Outcome(**json.loads(line)) for line in lines]
        return [*outcomes, *([Outcome("its program", failed=ending)] if ending else [])]


def _do(*command: str) -> None:
    """Run a command of an installation. Raises `NotInstalled`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise NotInstalled(f"there is no {command[0]} here") from None
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{command[0]} was not done after {INSTALL_TIMEOUT_S} s") from None
    if done.returncode:
        raise NotInstalled(_last_line(done.stderr))


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["it said nothing"])[-1]
