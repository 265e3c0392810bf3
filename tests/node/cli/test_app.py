"""The command line as a contract: spellings, configuration, environment, completion, and errors in one sentence."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from cosine_node.cli import main
from cosine_node.cli.app import COMMANDS, app, is_worth_logging, spread_peers
from cosine_node.cli.configuration import defaults_by_command, read_config, spellings, unknown_names
from cosine_node.terminal.waiting import CLEAR
from cosine_p2p.request.options import OPTIONS
from cosine_protocol.__version__ import __version__
from cosine_protocol.errors import GenerationFailed, UsageError
from tests.thoroughness import quick_first

A, B, C = (f"/ip4/192.0.2.{number}/tcp/4001" for number in (1, 2, 3))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options that `generate` would use, and its peers; nothing is sent."""
    seen: dict[str, Any] = {}

    async def note(peers: Any, prompt: Any, options: Any, *_: Any, **__: Any) -> None:
        seen.update(options, peers=peers, prompt=prompt)
        raise GenerationFailed("Nothing is sent in this test.")

    monkeypatch.setattr(sys.modules["cosine_node.cli.generate"], "_generate", note)
    return seen


def exit_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


@pytest.mark.parametrize("spelling", ["--max-new-tokens", "--max_new_tokens"])
@pytest.mark.parametrize("peers", ["--initial-peers", "--initial_peers"])
def test_options_are_taken_with_dashes_and_underscores(asked: dict[str, Any], spelling: str, peers: str) -> None:
    assert exit_of("generate", "hi", spelling, "7", peers, A, "--top_k=3") == 1
    assert (asked["max_new_tokens"], asked["peers"], asked["top_k"]) == (7, (A,), 3)


def test_an_error_that_quotes_a_peer_steers_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise GenerationFailed("No verifier could finish: it refused: \x1b]52;c;cm0=\x07.")

    monkeypatch.setattr(sys.modules["cosine_node.cli.generate"], "_generate", refuse)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert exit_of("generate", "hi", "--initial-peers", A) == 1
    assert capsys.readouterr().err.removeprefix(CLEAR) == (
        "Error: No verifier could finish: it refused: \ufffd]52;c;cm0=\ufffd.\n"
    )


def test_values_keep_their_underscores(asked: dict[str, Any]) -> None:
    exit_of("generate", "snake_case_name", "--initial-peers", A, "--network", "my_net", "--stop", "a_b")
    assert (asked["prompt"], asked["network"], asked["stop"]) == ("snake_case_name", "my_net", ("a_b",))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--initial-peers", A, B, C],
        ["--initial_peers", A, "--initial-peers", B, C],
        ["--initial-peers", A, "--initial-peers", B, "--initial-peers", C],
    ],
)
def test_one_option_may_be_followed_by_several_addresses(asked: dict[str, Any], arguments: list[str]) -> None:
    exit_of("generate", "hi", *arguments, "--seed", "5")
    assert (asked["peers"], asked["seed"], asked["prompt"]) == ((A, B, C), 5, "hi")


def test_only_addresses_are_spread() -> None:
    assert spread_peers(["generate", "--initial-peers", A, "/path"]) == [
        *("generate", "--initial-peers", A),
        *("--initial-peers", "/path"),
    ]
    assert spread_peers(["generate", "--initial-peers", A, "hi"]) == ["generate", "--initial-peers", A, "hi"]
    assert spread_peers(["generate", "/start", B]) == ["generate", "/start", B]
    assert spread_peers(["--initial-peers"]) == ["--initial-peers"]
    assert spread_peers([]) == []


def test_a_toml_file_gives_defaults_and_the_command_line_wins(asked: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "cosine.toml"
    file.write_text(
        f'[generate]\ninitial-peers = ["{A}", "{B}"]\nmax_new_tokens = 9\ntemperature = 0.5\nstrategy = "plain"\n'
    )
    assert exit_of("--config", str(file), "generate", "hi", "--temperature", "0.25") == 1
    assert (asked["peers"], asked["max_new_tokens"]) == ((A, B), 9)
    assert (asked["temperature"], asked["strategy"]) == (0.25, "plain")


def test_the_environment_gives_defaults_and_wins_over_the_file(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cosine.toml"
    file.write_text("[generate]\ntop_k = 4\ntimeout = 50\n")
    monkeypatch.setenv("COSINE_CONFIG", str(file))
    monkeypatch.setenv("COSINE_INITIAL_PEERS", f"{A} {B}")
    monkeypatch.setenv("COSINE_TOP_K", "8")
    exit_of("generate", "hi")
    assert (asked["peers"], asked["top_k"], asked["timeout_s"]) == ((A, B), 8, 50.0)


def test_a_configuration_file_nobody_named_need_not_exist() -> None:
    assert read_config(None) == {}


@pytest.mark.parametrize("content", ["[generate", "\xff", None])
def test_a_configuration_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "cosine.toml"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=str(file)):
        read_config(file)
    assert exit_of("--config", str(file), "zoo") == 2


def test_a_failure_is_one_sentence_and_exit_code_1(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_of("generate", "hi", "--initial-peers", A) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "Error: Nothing is sent in this test.\n")


def test_a_usage_error_is_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of("join", "--role", "cook") == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "Error: --role must be one of drafter, verifier, stage, not 'cook'.\n")


def test_with_json_an_error_is_one_object_on_stdout(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_of("generate", "hi", "--initial-peers", A, "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "Nothing is sent in this test."}
    assert err == "Error: Nothing is sent in this test.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["join", "--role", "drafter", "--max-requests", "0"],
        ["join", "--role", "drafter", "--threads", "0"],
        ["join", "--role", "drafter", "--emulate", "fast"],
        ["join", "--role", "drafter", "--log-format", "xml"],
        ["join", "--role", "drafter", "--model", "zoo:nobody"],
        ["join", "--role", "drafter", "--expertise", ",".join(map(str, range(17)))],
        ["join", "--role", "verifier", "--model", "ngram"],
        ["join"],
        ["generate", ""],
        ["generate", "hi"],
        ["generate", "hi", "--initial-peers", A, "--strategy", "guess"],
        ["generate", "hi", "--initial-peers", A, "--max-drafters", "-1"],
        ["generate", "hi", "--initial-peers", A, "--timeout", "0"],
        ["generate", "hi", "--initial-peers", A, "--max-new-tokens", "many"],
        ["generate", "hi", "--no-such-option"],
        ["generate"],
        ["demo", "--max-new-tokens", "0"],
        ["demo", "--emulate", "0/0"],
        ["no-such-command"],
    ],
    ids=lambda arguments: " ".join(arguments)[:48],
)
def test_bad_usage_is_exit_code_2_and_says_why(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Error: " in err and "Traceback" not in err


def run_node(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cosine_node", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_module_is_the_command() -> None:
    done = run_node("join", "--role", "cook", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == "--role must be one of drafter, verifier, stage, not 'cook'."
    assert done.stderr == "Error: --role must be one of drafter, verifier, stage, not 'cook'.\n"


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom cosine_node.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as exit_:\n    assert not exit_.code\n"
        "assert not {'torch', 'transformers', 'hivemind'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("join", "bootstrap", "generate", "demo", "identity", "zoo"):
        assert command in done.stdout


def test_the_command_seldom_looks_for_garbage_and_its_functions_in_this_process_change_nothing() -> None:
    code = (
        "import gc, sys\nfrom cosine_node.cli import COLLECTED_AFTER, main\nbefore = gc.get_threshold()\n"
        "for given, expected in ((['--version'], before[0]), (None, COLLECTED_AFTER)):\n"
        "    sys.argv = ['cosine-node', '--version']\n"
        "    try:\n        main(given)\n    except SystemExit as exit_:\n        assert not exit_.code\n"
        "    assert gc.get_threshold() == (expected, *before[1:])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def no_transport(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'hivemind'", name="hivemind")

    monkeypatch.setattr(sys.modules["cosine_node.cli.generate"], "_generate", no_transport)
    assert exit_of("generate", "hi", "--initial-peers", A) == 2
    assert capsys.readouterr().err == (
        "Error: This command needs hivemind: `pip install '.[node]'` in the clone of the repository.\n"
    )


def test_a_child_that_was_waited_for_already_is_no_news() -> None:
    def record(message: str) -> logging.LogRecord:
        return logging.LogRecord("asyncio", logging.WARNING, __file__, 1, message, (5,), None)

    assert not is_worth_logging(record("Unknown child process pid %d, will report returncode 255"))
    assert is_worth_logging(record("the executor did not finish %d threads"))


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of("--version") == 0
    assert capsys.readouterr().out == f"cosine-node {__version__}\n"


def test_every_command_stands_under_a_heading_and_has_an_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for commands in COMMANDS.values():
        for command, example in commands.items():
            name = command.__name__
            assert example.split()[0] == name
            assert exit_of(name, "--help") == 0
            assert f"Example: cosine-node {example}" in capsys.readouterr().out
    assert exit_of("--help") == 0
    out = capsys.readouterr().out
    assert [out.count(heading) for heading in COMMANDS] == [1] * len(COMMANDS)


PROGRAM: dict[str, Any] = getattr(get_command(app), "commands", {})


def test_generate_takes_every_option_of_a_client_that_can_be_typed() -> None:
    offered = {parameter.name for parameter in PROGRAM["generate"].params}
    assert OPTIONS.keys() - offered == {"eos", "observer", "transport"}


@pytest.mark.parametrize("name", sorted(PROGRAM))
def test_every_option_of_every_command_can_be_set(name: str) -> None:
    options = spellings(PROGRAM[name])
    for parameter in PROGRAM[name].params:
        assert options[parameter.name] is parameter
        long = [option for option in parameter.opts if option.startswith("--")]
        assert all(options[option.removeprefix("--").replace("-", "_")] is parameter for option in long)


@pytest.mark.parametrize("name", sorted(PROGRAM))
def test_one_value_of_a_repeatable_option_needs_no_brackets(name: str) -> None:
    for parameter in PROGRAM[name].params:
        table = {name: {parameter.name: "x"}}
        expected = ["x"] if getattr(parameter, "multiple", False) else "x"
        assert defaults_by_command(table, PROGRAM)[name] == {parameter.name: expected}


def test_the_doctor_takes_what_is_said_of_join_unless_told_otherwise() -> None:
    tables = {"join": {"role": "drafter", "network": "mine", "emulate": "60/6"}, "doctor": {"network": "other"}}
    assert defaults_by_command(tables, PROGRAM)["doctor"] == {"role": "drafter", "network": "other"}


def test_names_that_mean_nothing_are_found() -> None:
    tables: dict[str, dict[str, Any]] = {
        "join": {"role": "drafter", "modle": "x"},
        "jion": {"role": "drafter"},
        "status": {"json": True},
    }
    assert unknown_names(tables, PROGRAM) == ["[jion]", "join.modle"]


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        (sys.executable, "-m", "cosine_node", *arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", **environment},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


SCRIPTS: Final = {"bash": "complete -o", "zsh": "#compdef cosine-node", "fish": "complete"}
"""What the script of a shell has in it."""


@pytest.mark.parametrize("shell", quick_first(SCRIPTS))
def test_a_shell_gets_its_script(shell: str) -> None:
    script = run("--show-completion", shell)
    assert SCRIPTS[shell] in script and "_COSINE_NODE_COMPLETE" in script


@pytest.mark.parametrize(
    ("words", "proposals"),
    [("cosine-node d", {"demo", "doctor"}), ("cosine-node doctor --initial", {"--initial-peers"})],
)
def test_commands_and_options_are_proposed(words: str, proposals: set[str]) -> None:
    asked: Mapping[str, str] = {
        "_COSINE_NODE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    assert set(run(**asked).split()) == proposals


PEER = "/ip4/192.0.2.1/tcp/4001"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PermissionError(13, "Permission denied", "/keys/own"), "Permission denied (/keys/own); "),
        (OSError(28, "No space left on device"), "No space left on device; "),
        (TimeoutError("timed out"), "timed out; "),
    ],
)
def test_the_system_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError, sentence: str
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(import_module("cosine_node.cli.generate"), "_generate", refuse)
    with pytest.raises(SystemExit) as exit_:
        main(("generate", "hi", "--initial-peers", PEER, "--json"))
    out, err = capsys.readouterr()
    assert exit_.value.code == 1
    assert err == f"Error: {sentence}`cosine-node doctor` looks for what is wrong on this machine.\n"
    assert json.loads(out)["error"] in err
