"""The command line: spellings, configuration, environment, completion, and errors."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from typer.main import get_command

from cosine_cli.configuration import defaults_by_command, read_config
from cosine_cli.program import COMMANDS, USE, app
from cosine_p2p.request.options import OPTIONS
from cosine_protocol.__version__ import __version__
from cosine_protocol.errors import GenerationFailed, UsageError
from cosine_terminal.companions import COMMANDS as ENTRY_POINTS
from cosine_terminal.companions import LABORATORY
from cosine_terminal.options import spread_peers
from cosine_terminal.packages import HOMELESS, missing_text
from tests.node.cli.conftest import Run
from tests.thoroughness import quick_first

A, B, C = (f"/ip4/192.0.2.{number}/tcp/4001" for number in (1, 2, 3))
PROGRAM: dict[str, Any] = getattr(get_command(app), "commands", {})


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:

    def fail_with(error: Exception) -> None:
        async def fail(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr(sys.modules["cosine_cli.generate"], "_generate", fail)

    return fail_with


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    async def note(peers: Any, prompt: Any, options: Any, *_: Any, **__: Any) -> None:
        seen.update(options, peers=peers, prompt=prompt)
        raise GenerationFailed("Nothing is sent in this test.")

    monkeypatch.setattr(sys.modules["cosine_cli.generate"], "_generate", note)
    return seen


def test_options_are_taken_with_dashes_and_underscores_and_values_keep_theirs(
    run: Run, asked: dict[str, Any]
) -> None:
    line = ("--max_new_tokens", "7", "--initial-peers", A, "--top_k=3", "--stop", "c_d")
    assert run("generate", "a_b", *line).code == 1
    assert (asked["max_new_tokens"], asked["peers"], asked["top_k"]) == (7, (A,), 3)
    assert (asked["prompt"], asked["stop"]) == ("a_b", ("c_d",))


def test_one_option_may_be_followed_by_several_addresses(run: Run, asked: dict[str, Any]) -> None:
    run("generate", "hi", "--initial_peers", A, "--initial-peers", B, C, "--seed", "5")
    assert (asked["peers"], asked["seed"], asked["prompt"]) == ((A, B, C), 5, "hi")
    option = "--initial-peers"
    assert spread_peers(["generate", option, A, "/path"]) == ["generate", option, A, option, "/path"]
    link = f"cosine:{A}"
    assert spread_peers(["generate", option, link, link]) == ["generate", option, link, option, link]
    for arguments in (["generate", option, A, "hi"], ["generate", "/start", B], [option], []):
        assert spread_peers(arguments) == arguments


def test_a_toml_file_gives_defaults_the_environment_wins_and_the_command_line_wins_over_both(
    run: Run, asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cosine.toml"
    file.write_text(
        f'[generate]\ninitial-peers = ["{A}", "{B}"]\nmax_new_tokens = 9\ntemperature = 0.5\n'
        "top_k = 4\ntimeout = 50\n"
    )
    assert run("--config", str(file), "generate", "hi", "--temperature", "0.25").code == 1
    assert (asked["peers"], asked["max_new_tokens"], asked["timeout_s"]) == ((A, B), 9, 50.0)
    assert (asked["temperature"], asked["top_k"]) == (0.25, 4)
    monkeypatch.setenv("COSINE_CONFIG", str(file))
    monkeypatch.setenv("COSINE_INITIAL_PEERS", f"{B} {C}")
    monkeypatch.setenv("COSINE_TOP_K", "8")
    run("generate", "hi")
    assert (asked["peers"], asked["top_k"], asked["timeout_s"]) == ((B, C), 8, 50.0)


@pytest.mark.parametrize("content", ["[generate", "\xff", None])
def test_only_a_configuration_file_that_was_named_must_be_there_and_readable(
    run: Run, tmp_path: Path, content: str | None
) -> None:
    assert read_config(None) == {}
    file = tmp_path / "cosine.toml"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=str(file)):
        read_config(file)
    assert run("--config", str(file), "zoo").code == 2


GENERATE = ("generate", "hi", "--initial-peers", A)
SYSTEM = "`cosine-node doctor` looks for what is wrong on this machine."


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (GenerationFailed("Nobody."), 1, "Nobody."),
        (PermissionError(13, "Permission denied", "/keys/own"), 1, f"Permission denied (/keys/own); {SYSTEM}"),
        (OSError(28, "No space left on device"), 1, f"No space left on device; {SYSTEM}"),
        (TimeoutError("timed out"), 1, f"timed out; {SYSTEM}"),
        (
            ModuleNotFoundError("No module named 'hivemind'", name="hivemind"),
            2,
            "This command needs hivemind: `pip install . './node[torch]'` in the clone of the repository.",
        ),
    ],
)
def test_a_failure_is_one_sentence_and_with_json_an_object_on_stdout(
    run: Run, failing: Callable[[Exception], None], error: Exception, code: int, sentence: str
) -> None:
    failing(error)
    assert run(*GENERATE) == (code, "", f"Error: {sentence}\n")
    told = run(*GENERATE, "--json")
    assert (told.code, json.loads(told.out), told.err) == (code, {"error": sentence}, f"Error: {sentence}\n")


@pytest.mark.parametrize(
    "line",
    [
        "join --role cook",
        "join --role drafter --max-requests 0",
        "join --role drafter --emulate fast",
        "join --role drafter --model zoo:nobody",
        f"join --role drafter --expertise {','.join(map(str, range(17)))}",
        "join --role verifier --model ngram",
        "join --role verifier --model openai:http://127.0.0.1:1/v1#m",
        "join",
        "generate hi",
        "generate hi --no-such-option",
        *(f"generate hi --initial-peers {A} {bad}" for bad in ("--strategy guess", "--max-new-tokens many")),
        "demo --emulate 0/0",
        "demo --emulate @60",
        "no-such-command",
    ],
)
def test_bad_usage_is_exit_code_2_and_says_why(run: Run, line: str) -> None:
    code, out, err = run(*line.split())
    assert (code, out) == (2, "")
    assert "Error: " in err and "Traceback" not in err
    assert run("generate", "").code == 2


@pytest.mark.parametrize("command", quick_first([["nothing"], ["zoo"], ["--help"]]))
def test_a_reader_that_goes_ends_a_command_without_a_word(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        program = [sys.executable, "-m", "cosine_node", *command]
        # What is wrong goes to stderr, whose reader may go as well.
        streams: dict[str, Any] = {"stdout": pipe, "stderr": subprocess.PIPE}
        if command == ["nothing"]:
            streams = {"stderr": pipe}
        done = subprocess.run(program, timeout=120, check=False, **streams)
    assert (done.returncode, done.stderr or b"") == (141, b"")


def test_without_a_home_folder_it_is_said_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    for homeless in (lambda: Path("~nobody-at-all").expanduser(), lambda: platformdirs.user_data_dir("a")):
        with pytest.raises(RuntimeError) as raised:
            homeless()
        assert missing_text(raised.value) == HOMELESS
    assert missing_text(RuntimeError("a fault of ours")) == ""


def test_help_imports_nothing_heavy_and_only_the_command_itself_seldom_looks_for_garbage() -> None:
    """With PyTorch loaded the final garbage collection took six seconds."""
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() >= len(gc.get_objects())))\n"
        "from cosine_cli.start import COLLECTED_AFTER, main\nbefore = gc.get_threshold()\n"
        "for given, expected in ((['--help-all'], before[0]), (None, COLLECTED_AFTER)):\n"
        "    sys.argv = ['cosine-node', '--version']\n"
        "    try:\n        main(given)\n    except SystemExit as exit_:\n        assert not exit_.code\n"
        "    assert gc.get_threshold() == (expected, *before[1:])\n"
        "assert not {'torch', 'transformers', 'hivemind'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("join", "bootstrap", "demo", "identity", "zoo"):
        assert command in done.stdout
    assert done.stdout.endswith(f"cosine-node {__version__}\nTrue\n")


def test_every_command_stands_under_a_heading_and_has_an_example(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for heading, commands in COMMANDS.items():
        program = "cosine" if heading is USE else "cosine-node"
        for example in commands.values():
            name = example.split()[0]
            told = run(name, "--help")
            assert told.code == 0 and (name == "tui" or f"Example: {program} {example}" in told.out)
    told = run("--help-all")
    assert [told.out.count(f"─ {heading} ─") for heading in COMMANDS] == [
        heading is not USE for heading in COMMANDS
    ]


def test_a_command_of_actions_runs_the_usual_one_and_its_table_has_a_table_for_each(
    run: Run, tmp_path: Path
) -> None:
    assert run("zoo").out == run("zoo", "list").out
    assert run("zoo", "draft-math").out == run("zoo", "list", "draft-math").out
    assert "No such option: --offline" in run("audit", "endpoint", "http://127.0.0.1", "--offline").err
    file = tmp_path / "mine.toml"
    file.write_text("[zoo.list]\njson = true")
    assert json.loads(run("--config", str(file), "zoo").out).keys() == {"models"}
    file.write_text("[zoo.list]\njsn = true")
    told = run("--config", str(file), "zoo").err
    assert f"zoo.list.jsn in {file} is not an option of `cosine-node zoo list`; did you mean zoo.list.json?" in told


def test_generate_takes_all_options_that_can_be_typed_and_the_doctor_what_is_said_of_join() -> None:
    offered = {parameter.name for parameter in PROGRAM["generate"].params}
    assert OPTIONS.keys() - offered == {"eos", "listen", "logit_bias", "observer", "stop_token_ids", "transport"}
    tables = {"join": {"role": "drafter", "network": "mine"}, "doctor": {"network": "other"}}
    assert defaults_by_command(tables, PROGRAM)["doctor"] == {"role": "drafter", "network": "other"}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[identity]\nidentty = 'k'", "identity.identty in {file} is not an option of `cosine-node identity`; did"),
        ("[identity]\nnothing-like-it = 1", "is not an option of `cosine-node identity`."),
        ("[jion]\nrole = 'drafter'", "[jion] in {file} is not the table of a command; did you mean [join]?"),
        ("role = 'drafter'\n[join]", "role in {file} is in no table; put it into that of its command"),
    ],
)
def test_a_misspelt_name_in_the_file_is_refused_with_the_nearest(
    run: Run, tmp_path: Path, written: str, said: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(written)
    told = run("--config", str(file), "identity", "--identity", str(tmp_path / "key"))
    assert told.code == 2 and said.format(file=file) in told.err and len(told.err.splitlines()) == 1
    # A misspelt option of another command is that one's matter.
    file.write_text("[join]\nmodle = 'x'\n[identity]\njson = true")
    assert run("--config", str(file), "identity", "--identity", str(tmp_path / "key")).code == 0


@pytest.mark.parametrize(
    ("words", "proposals"),
    [("cosine-node d", {"demo", "doctor", "draft"}), ("cosine-node doctor --initial", {"--initial-peers"})],
)
def test_commands_and_options_are_proposed(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str, proposals: set[str]
) -> None:
    monkeypatch.setenv("_COSINE_NODE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert set(run().out.split()) == proposals


@pytest.mark.thorough
def test_without_companions_their_commands_say_how_to_install_them_and_the_help_lists_them() -> None:
    code = (
        "import importlib.metadata as m; every = m.entry_points\n"
        "m.entry_points = lambda **asked: every(**asked) if asked['group'] == 'cosine.commands' else ()\n"
        "import cosine_cli.start, cosine_tui.cli, sys\n"
        "node, tui = cosine_cli.start.main, cosine_tui.cli.main\n"
        "simulate, demo = ['simulate', '--scenario', 'home', '--json'], ['--demo', '--screenshot', '/none']\n"
        "train, others = ['zoo', 'train', '--target', 'x'], ['--help-all']\n"
        "commands = [(node, simulate), (node, ['bench', 'rtt', '--quick']), (tui, demo)]\n"
        "commands += [(node, each) for each in (train, others)]\n"
        "for main, given in commands:\n"
        "    try:\n        main(given)\n    except SystemExit as exit_:\n        print(exit_.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    laboratory = "This needs the laboratory: `pip install ./node ./node/train ./lab` in a checkout of the project."
    training = (
        "This needs the distribution for training: `pip install ./node ./node/train` in a checkout of the project."
    )
    # The monitor needs nothing of what the laboratory needs besides.
    simulation = laboratory.replace("./node ./node/train ./lab", "--no-deps ./lab")
    sentences = [laboratory, laboratory, simulation, training]
    assert done.stderr == "".join(f"Error: {sentence}\n" for sentence in sentences)
    assert done.stdout.startswith(f'{{"error": "{laboratory}"}}\n' + "2\n" * 4) and done.stdout.endswith("0\n")
    assert all(f"{name} " in done.stdout for name in ("simulate", "bench", "zoo"))


def test_an_installation_of_a_companion_whose_checkout_is_gone_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("cosine_lab.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cosine_lab", None)
    with pytest.raises(UsageError, match=r"pip install \./node \./node/train \./lab"):
        LABORATORY.part(ENTRY_POINTS, "simulate")
