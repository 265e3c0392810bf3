"""Installs third-party clients and runs the jobs of each at a gateway over a local swarm.

It needs PyPI, the npm registry, Node.js and some gigabytes of disk.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cosine_engine import zoo
from tests.e2e.conftest import swarm_in
from tests.e2e.nodes import Node

LOG: Final = logging.getLogger(__name__)
ROOT: Final = Path(__file__).parents[2]
MODEL: Final = "cosine"
KEY: Final = "sesame"
SMOL: Final = ("zoo:smol-target", "zoo:smol-general")
TOY: Final = ("zoo:target", "zoo:draft-general")
TIMEOUT_S: Final = 1800
"""The timeout for an installation, of about a hundred packages at most, and for the jobs of a client."""
NO_PRICES: Final = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""Stops LiteLLM from fetching prices from the internet."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client by the name that people call it.

    packages: what is installed, from npm if `is_npm`, else from PyPI; the version of the first is the client's.
    program: a module of `programs`, or a file there that Node.js runs.
    environment: variables that it needs.
    """

    name: str
    packages: tuple[str, ...]
    program: str
    environment: Mapping[str, str] = field(default_factory=dict)
    is_npm: bool = False

    @property
    def package(self) -> str:
        return self.packages[0].partition("[")[0]

    def jobs_done(self, url: str, folder: Path, home: Path) -> list[dict[str, str]]:
        """The reports of its jobs, installed in a folder, at a gateway. Raises as `subprocess.run` does.

        Of this environment the program gets where programs are, and nothing else: no key and no setting of whoever
        runs this.
        """
        programs = folder / ("node_modules/.bin" if self.is_npm else "bin")
        python = Path(sys.executable) if self.is_npm else programs / "python"
        if not programs.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            if self.is_npm:
                do("npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *self.packages)
            else:
                do(sys.executable, "-m", "venv", str(folder))
                do(str(python), "-m", "pip", "install", "--quiet", *self.packages)
        LOG.info("%s %s", self.name, self._version(folder, python))
        runner: tuple[str, ...] = (str(python), "-m", f"tests.clients.programs.{self.program}")
        if self.program.endswith(".mjs"):
            runner = ("node", str(Path(__file__).parent / "programs" / self.program))
        home.mkdir(parents=True)
        report = home / "report.jsonl"
        path = os.pathsep.join((str(programs), os.environ["PATH"]))
        places = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        do(*runner, str(report), url, MODEL, KEY, cwd=folder, environment=places | dict(self.environment))
        return [json.loads(line) for line in report.read_text("utf-8").splitlines()]

    def _version(self, folder: Path, python: Path) -> str:
        if self.is_npm:
            described = (folder / "node_modules" / self.package / "package.json").read_text("utf-8")
            return str(json.loads(described)["version"])
        return do(str(python), "-c", f"from importlib.metadata import version; print(version({self.package!r}))")


def do(*command: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Return what a command prints. Raises `subprocess.SubprocessError` or `FileNotFoundError`."""
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise subprocess.SubprocessError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return done.stdout.strip()


CLIENTS: Final = (
    Client("LiteLLM", ("litellm",), "litellm_package", NO_PRICES),
    Client("Instructor", ("instructor",), "instructor_package"),
    Client("Pydantic AI", ("pydantic-ai-slim[openai]",), "pydantic_ai_package"),
    Client("llm", ("llm",), "llm_command"),
    Client("lm-eval", ("lm-eval[api]",), "lm_eval_command"),
    Client("Aider", ("aider-chat",), "aider_command", NO_PRICES),
    Client("AI SDK", ("ai", "@ai-sdk/openai-compatible", "zod"), "ai_sdk.mjs", is_npm=True),
    Client("Codex", ("@openai/codex",), "codex_command", is_npm=True),
    Client("Claude Code", ("@anthropic-ai/claude-code",), "claude_code_command", is_npm=True),
)
"""`tests/gateway/test_packages.py` has the packages of OpenAI, Anthropic and LangChain."""


def main() -> int:
    """Return 0 if every job succeeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CLIENT", help="; ".join(client.name for client in CLIENTS))
    parser.add_argument("--cache", type=Path, help="where clients are installed and stay, by default a new folder")
    options = parser.parse_args()
    if unknown := set(options.names) - {client.name for client in CLIENTS}:
        parser.error(f"there is no client {', '.join(sorted(unknown))}")
    logging.basicConfig(format="%(message)s")
    LOG.setLevel(logging.INFO)
    chosen = [client for client in CLIENTS if client.name in options.names or not options.names]
    target = SMOL if "smol-target" in zoo.names(zoo.Family.SMOL) else TOY
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with gateway(target, folder) as url:
            cache = (options.cache or folder / "installed").absolute()
            return sum(failures(client, url, cache, folder) for client in chosen)


@contextmanager
def gateway(target: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield the address of a gateway over a verifier and a drafter, isolated from the user's settings."""
    name, drafter = target
    homes = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("DATA", "CACHE", "CONFIG", "STATE")}
    os.environ |= {**homes, "HF_HUB_OFFLINE": "1"}
    with swarm_in(folder, target=name, dtype=None, drafters={"general": drafter}) as swarm:
        serve = ("serve", "--port", "0", "--target", name, "--api-key", KEY, "--timeout", "600", *swarm.peers)
        with closing(Node.start("gateway", serve, folder)) as node:
            yield str(node.wait_ready().ready["url"])


def failures(client: Client, url: str, cache: Path, folder: Path) -> int:
    """Install a client, run and report its jobs, and return the number of failures."""
    place = client.package.replace("/", "-").removeprefix("@")
    try:
        reports = client.jobs_done(url, cache / place, folder / "homes" / place)
    except (subprocess.SubprocessError, FileNotFoundError) as error:
        reports = [{"job": "installation or program", "failed": str(error)}]
    for report in reports:
        LOG.info("%s, %s: %s", client.name, report["job"], report.get("failed") or report["shown"])
    return sum("failed" in report for report in reports)


if __name__ == "__main__":
    sys.exit(main())
