"""Commands name the missing extra in one sentence."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from cosine_terminal.packages import missing_text
from tests.cosine_p2p.samples import identity_of
from tests.thoroughness import quick_first

PEER: Final = f"/ip4/127.0.0.1/tcp/1/p2p/{identity_of(1).peer_id}"
CODE: Final = """
import importlib.abc, importlib.util, sys

missing, real = set(sys.argv.pop(1).split()), importlib.util.find_spec


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


importlib.util.find_spec = lambda name, package=None: (
    None if name.partition(".")[0] in missing else real(name, package)
)
sys.meta_path.insert(0, Missing())
from {module} import main
main()
"""
IMPORTED_AS: Final = {"prometheus-client": "prometheus_client", "huggingface-hub": "huggingface_hub"}
ROOT: Final = Path(__file__).parents[3]
CLIENT, NODE = (
    tomllib.loads((ROOT / place / "pyproject.toml").read_text("utf-8"))["project"] for place in ("", "node")
)
OF_NODES: Final = {"node": "torch", "llama": "llama"}


def packages_of(extra: str) -> list[str]:
    """The import names of an extra's packages, with imports of hivemind and py-libp2p."""
    lines = CLIENT["optional-dependencies"].get(extra, [])
    if extra in OF_NODES:
        lines = NODE["dependencies"] + NODE["optional-dependencies"][OF_NODES[extra]]
    names = [re.match(r"[\w-]+", line) for line in lines]
    found = [IMPORTED_AS.get(name[0], name[0]) for name in names if name is not None and name[0] != "cosine-p2p"]
    return found + {"node": ["google"], "light": ["trio"]}.get(extra, [])


def ended(module: str, missing: list[str], *given: str, home: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", CODE.replace("{module}", module), " ".join(missing), *given],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=home,
    )
    return done.returncode, done.stderr.splitlines()


CASES: Final = {
    "join": ("node", "--role", "verifier", "--model", "zoo:target"),
    "bootstrap": ("node",),
    "convert": ("node", "zoo:target", "model.gguf"),
    "serve": ("gateway", "--initial-peers", PEER, "--target", "zoo:target"),
    "generate": ("light", "a", "--initial-peers", PEER, "--target", "zoo:target"),
    "monitor": ("tui", "--initial-peers", PEER, "--screenshot", "screen.svg"),
}


@pytest.mark.parametrize("command", quick_first(CASES))
def test_one_sentence_says_what_to_install(command: str, tmp_path: Path) -> None:
    extra, *options = CASES[command]
    missing = packages_of(extra) + (packages_of("node") if extra == "light" else [])
    module, given = ("cosine_tui.cli", options) if extra == "tui" else ("cosine_cli.start", [command, *options])
    code, said = ended(module, missing, *given, home=tmp_path)
    assert code == 2 and not any("Traceback" in line for line in said), said
    assert said[-1].startswith("Error: ") and "pip install " in said[-1]


@pytest.mark.parametrize("extra", ["node", "llama", "gateway", "light"])
def test_every_package_of_an_extra_is_known(extra: str) -> None:
    for package in packages_of(extra):
        # Commands do without uvloop.
        assert package == "uvloop" or "pip install " in missing_text(ModuleNotFoundError(name=package)), package
