"""The files of the page are built from its source, small, and licensed."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from cosine_gateway.page.files import FOLDER, read_assets
from tests.test_rooms import ROOT

WEB: Final = ROOT / "web"
TOOLS: Final = WEB / "node_modules"
MAX_WEIGHT_BYTES: Final = 200_000

needs_tools = pytest.mark.skipif(
    shutil.which("node") is None or not (TOOLS / "esbuild").is_dir(),
    reason="Node.js, or what `npm ci` puts into web/node_modules, is not there.",
)


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_tools
def test_the_files_are_what_the_source_is_built_into(tmp_path: Path) -> None:
    run("node", "build.mjs", str(tmp_path))
    built = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert built == {file.name: file.read_bytes() for file in FOLDER.iterdir()}


@needs_tools
def test_the_source_is_well_typed() -> None:
    run("node", "node_modules/typescript/bin/tsc", "--noEmit")


def test_the_page_is_small() -> None:
    assert sum(len(asset.compressed) for asset in read_assets().values()) < MAX_WEIGHT_BYTES


def test_what_is_of_others_comes_with_its_licence() -> None:
    package = json.loads((WEB / "package.json").read_text("utf-8"))
    assert list(package["dependencies"]) == ["preact"]
    assert "Permission is hereby granted" in (FOLDER / "licences.txt").read_text("utf-8")
