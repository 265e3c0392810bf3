"""Content of the wheel and of its companions."""

import re
import subprocess
import sys
import tomllib
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Final
from zipfile import ZipFile

import pytest

from cosine_p2p import __version__
from tests.packaging.conftest import ROOT, Built

pytestmark = pytest.mark.thorough

PACKAGES: Final = {
    "cosine_p2p": ROOT / "cosine_p2p",
    "cosine_cli": ROOT / "node" / "cosine_cli",
    "cosine_gateway": ROOT / "node" / "cosine_gateway",
    "cosine_terminal": ROOT / "node" / "cosine_terminal",
    "cosine_protocol": ROOT / "protocol" / "cosine_protocol",
    "cosine_tui": ROOT / "tui" / "cosine_tui",
}
MAX_WHEEL_BYTES: Final = 900_000
COMPANIONS: Final = {
    "cosine_engine": ROOT / "node",
    "cosine_node": ROOT / "node",
    "cosine_lab": ROOT / "lab",
    "cosine_smol": ROOT / "weights",
    "cosine_train": ROOT / "node" / "train",
}
"""Packages of the other distributions."""
HEAVY: Final = ("torch", "transformers", "hivemind", "numpy", "textual", "starlette")
BUILT_HERE: Final = ("libp2p", "fastecdsa")


@pytest.fixture(scope="module")
def sizes(built: Built) -> dict[str, int]:
    with ZipFile(built.wheel) as wheel:
        return {entry.filename: entry.file_size for entry in wheel.infolist() if not entry.is_dir()}


@pytest.fixture(scope="module")
def metadata(built: Built) -> Message:
    with ZipFile(built.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(wheel.read(name).decode())


def files_below(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder.parent).as_posix() for path in found}


def test_the_packages_are_whole_and_nothing_else_is_put_into_site_packages(
    sizes: dict[str, int],
) -> None:
    packed = {name for name in sizes if ".dist-info/" not in name}
    assert packed == {name for folder in PACKAGES.values() for name in files_below(folder)}
    assert packed >= {f"{package}/py.typed" for package in PACKAGES}


def test_the_wheel_of_the_client_is_small(built: Built) -> None:
    assert built.wheel.stat().st_size < MAX_WHEEL_BYTES


def test_the_metadata_are_those_of_the_project(metadata: Message, sizes: dict[str, int]) -> None:
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (metadata["Name"], metadata["Version"]) == (ours["name"], __version__)
    assert metadata["Requires-Python"] == ours["requires-python"]
    assert set(metadata.get_all("Provides-Extra", ())) == ours["optional-dependencies"].keys()
    assert (ROOT / "README.md").read_text().strip() in str(metadata.get_payload())
    assert metadata["License-Expression"] == "Apache-2.0"
    inside = {PurePosixPath(name).name for name in sizes if ".dist-info/licenses/" in name}
    assert inside == {"LICENSE", "NOTICE"}


def test_the_base_is_a_light_client(metadata: Message) -> None:
    base = [line for line in metadata.get_all("Requires-Dist", ()) if "extra ==" not in line]
    assert base
    assert [line for line in base if line.startswith((*HEAVY, *BUILT_HERE))] == []


@pytest.mark.parametrize("package", COMPANIONS)
def test_a_companion_is_a_wheel_of_its_own(package: str, built: Built, tmp_path: Path) -> None:
    """It has all modules, data and licences."""
    del built
    home = COMPANIONS[package]
    command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(home))
    subprocess.run(command, capture_output=True, check=True)
    [wheel] = tmp_path.glob("*.whl")
    with ZipFile(wheel) as packed:
        names = {re.sub(r"^cosine_\w+-[^/]+", "dist", name) for name in packed.namelist()}
    terms = {f"dist/extra_metadata/{name}" for name in ("LICENSE", "NOTICE")}
    assert files_below(home / package) | terms <= names
