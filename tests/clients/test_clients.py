"""What tells of clients of other makers: their programs, the reports of these, and the page made of them."""

import json
import sys
from pathlib import Path

import pytest

from tests.clients.catalogue import CLIENTS, Client, Registry
from tests.clients.installation import PROGRAMS, ROOT, Installation, NotInstalled, Outcome, read_report
from tests.clients.page import Tried, page_of, result
from tests.clients.programs.job import Gateway, outcome, said_by

GATEWAY = Gateway("http://127.0.0.1:8000", "cosine", "sesame")
PLACE = ("http://127.0.0.1:8000", "cosine", "sesame")


def client_of(registry: Registry, *packages: str, program: str = "openai_package") -> Client:
    return Client(name="Some", registry=registry, packages=packages, program=program, set_by="`url`")


def a_long_chat(gateway: Gateway) -> str:
    return gateway.base


def a_refusal(gateway: Gateway) -> str:
    raise ValueError("no\nsuch | thing " * 100)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_client_has_a_program(client: Client) -> None:
    is_file = client.program.endswith(".mjs")
    assert (PROGRAMS / (client.program if is_file else f"{client.program}.py")).is_file()
    assert not is_file or client.registry is Registry.NPM


def test_clients_are_installed_each_in_a_folder_of_its_own() -> None:
    folders = [client.folder for client in CLIENTS]
    assert len(set(folders)) == len(CLIENTS)
    assert {"langchain-openai", "lm-eval", "openai-codex"} <= set(folders)


@pytest.mark.parametrize(
    ("client", "command"),
    [
        (client_of(Registry.PYPI, "llm"), ("/here/llm/bin/python", "-m", "tests.clients.programs.openai_package")),
        (client_of(Registry.NPM, "@a/b"), (sys.executable, "-m", "tests.clients.programs.openai_package")),
        (client_of(Registry.NPM, "ai", program="ai_sdk.mjs"), ("node", str(PROGRAMS / "ai_sdk.mjs"))),
    ],
    ids=["its own Python", "ours beside it", "Node.js"],
)
def test_a_program_runs_where_its_client_is(client: Client, command: tuple[str, ...]) -> None:
    installed = Installation(client, Path("/here") / client.folder)
    assert installed.command(Path("report"), PLACE) == (*command, "report", *PLACE)


def test_what_is_installed_is_not_installed_again(tmp_path: Path) -> None:
    client = client_of(Registry.NPM, "ai")
    (tmp_path / "ai").mkdir()
    (tmp_path / "ai" / "installed.json").write_text(json.dumps(["ai"]))
    (tmp_path / "ai" / "node_modules" / "ai").mkdir(parents=True)
    (tmp_path / "ai" / "node_modules" / "ai" / "package.json").write_text('{"version": "6.0"}')
    assert Installation.make(client, tmp_path).version == "6.0"


def test_a_client_that_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalled, match="there is no npm here"):
        Installation.make(client_of(Registry.NPM, "ai"), tmp_path / "cache")


def test_a_job_tells_what_it_showed_or_how_it_failed() -> None:
    assert outcome(a_long_chat, GATEWAY) == {"job": "a long chat", "shown": "http://127.0.0.1:8000/v1"}
    failed = outcome(a_refusal, GATEWAY)["failed"]
    assert failed.startswith("ValueError: no such | thing no such") and len(failed) == 300


def test_a_job_that_fails_without_a_word_tells_where() -> None:
    def a_check(gateway: Gateway) -> str:
        raise AssertionError

    assert outcome(a_check, GATEWAY)["failed"] == "AssertionError: raise AssertionError"


def test_a_command_of_a_client_gets_no_key_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    told = said_by("env", folder=tmp_path, SWARM_KEY="sesame").splitlines()
    assert "SWARM_KEY=sesame" in told and f"HOME={tmp_path}" in told
    assert not [line for line in told if line.startswith("OPENAI_API_KEY")]
    with pytest.raises(RuntimeError, match="sh ended with 3 and said two"):
        said_by("sh", "-c", "echo one; echo two; exit 3", folder=tmp_path)
    assert said_by("sh", "-c", "echo one; exit 3", folder=tmp_path, may_fail=True) == "one\n"


def test_a_program_that_ends_early_is_told_after_what_it_did(tmp_path: Path) -> None:
    """Its Python is ours, and lacks nothing but a gateway."""
    installed = Installation(client_of(Registry.NPM, "@a/b", program="no_such_program"), ROOT)
    (told,) = installed.jobs_done(PLACE, tmp_path / "home")
    assert told.job == "its program" and "no_such_program" in told.failed


def test_a_page_has_a_row_for_each_client_and_says_what_failed() -> None:
    report = '{"job": "chat", "shown": "24 tokens"}\n{"job": "tools", "failed": "no\\n| such `thing`"}\n'
    tried = Tried(client_of(Registry.PYPI, "some"), "1.2", read_report(report))
    page = page_of([tried, Tried(client_of(Registry.NPM, "other"), "3", [Outcome("chat", "text")])], target="a toy")
    assert "| Some | 1.2 | 1 of 2 | `url` |" in page and "| Some | 3 | 1 of 1 | `url` |" in page
    assert "- Some, tools: **not done**: no such thing\n" in page
    assert "2 of 3 jobs" in page and "a toy" in page


@pytest.mark.parametrize("said", ["a|b", "`--option`", "<b>", "[link](there)", "two\nlines"])
def test_what_a_client_says_of_a_failure_is_no_markdown(said: str) -> None:
    told = result(Outcome("chat", failed=said)).removeprefix("**not done**: ")
    assert not set(told) & set("|`<>[]\n")
