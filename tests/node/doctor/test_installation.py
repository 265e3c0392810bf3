"""The installation: judged by what is there, and p2pd by starting it."""

import asyncio
from pathlib import Path

import pytest

from cosine_node.doctor.finding import CheckStatus
from cosine_node.doctor.machine import (
    EXTRAS,
    find_daemon,
    judge_daemon,
    judge_extras,
    judge_imports,
    judge_python,
    missing_packages,
)


@pytest.mark.parametrize(("version", "status"), [((3, 10, 9), "failure"), ((3, 11, 0), "ok"), ((3, 14, 1), "ok")])
def test_python_must_be_new_enough(version: tuple[int, int, int], status: str) -> None:
    assert judge_python(version).status == status


def test_only_a_node_needs_the_packages_of_a_node() -> None:
    whole = dict.fromkeys(EXTRAS, ())
    bare = EXTRAS
    assert judge_extras(whole, extra="node", needs_node=True).status is CheckStatus.OK
    assert judge_extras(bare, extra="node", needs_node=False).status is CheckStatus.WARNING
    found = judge_extras({**whole, "node": ("torch",)}, extra="node", needs_node=True)
    assert (found.status, "torch" in found.found) == (CheckStatus.FAILURE, True)
    assert "'.[node]'" in found.fix


def test_a_node_on_llama_needs_no_torch() -> None:
    whole = dict.fromkeys(EXTRAS, ())
    assert judge_extras({**whole, "node": ("torch",)}, extra="llama", needs_node=True).status is CheckStatus.OK
    found = judge_extras({**whole, "llama": ("xllamacpp",)}, extra="llama", needs_node=True)
    assert (found.status, "[llama] lacks xllamacpp" in found.found) == (CheckStatus.FAILURE, True)
    assert "'.[llama]'" in found.fix and "--no-deps hivemind" in found.fix


def test_what_is_missing_is_found_without_importing() -> None:
    assert missing_packages()["node"] == ()


def test_a_package_that_cannot_be_loaded_is_named() -> None:
    found = judge_imports({"torch": "OSError: libcudart.so.12", "numpy": ""}, {"numpy": "2.0"})
    assert (found.status, "torch" in found.found, "libcudart" in found.found) == (CheckStatus.FAILURE, True, True)
    assert found.fix.endswith("--force-reinstall torch`.")
    assert judge_imports({"numpy": ""}, {"numpy": "2.0"}).found == "numpy 2.0"
    assert judge_imports({}, {}).status is CheckStatus.SKIPPED


def test_the_daemon_of_this_installation_starts() -> None:
    assert asyncio.run(judge_daemon(find_daemon())).status is CheckStatus.OK


@pytest.mark.parametrize(
    ("content", "said"),
    [("#!/bin/sh\nexit 3\n", "code 3"), ("#!/no/such/interpreter\n", "No such file"), ("", "format")],
)
def test_what_a_daemon_says_instead_of_starting_is_passed_on(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "p2pd"
    file.write_text(content)
    file.chmod(0o755)
    found = asyncio.run(judge_daemon(file))
    assert (found.status, said in found.found) == (CheckStatus.FAILURE, True), found


def test_without_hivemind_there_is_no_daemon_to_judge() -> None:
    assert asyncio.run(judge_daemon(None)).status is CheckStatus.SKIPPED
