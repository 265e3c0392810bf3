"""`cosine-node service`: units that systemd accepts and that work from any folder."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.cli.systemd_unit import STOP_S, quoted, unit_of
from cosine_node.serving import node
from cosine_node.serving.announcing import GOODBYE_TIMEOUT_S
from cosine_p2p.transport.full.hivemind_patches import END_TIMEOUT_S
from tests.node.cli.conftest import Run

PEER = "/ip4/192.0.2.1/tcp/4001"
ID = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
JOIN = ("--role", "drafter", "--model", "zoo:draft-code")


@pytest.fixture(autouse=True)
def _in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def command_of(unit: str) -> list[str]:
    (line,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    return shlex.split(line.removeprefix("ExecStart="))


def verified(unit: str, folder: Path, *, is_user: bool) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    file = folder / "cosine-node.service"
    file.write_text(unit)
    done = subprocess.run(
        (analyze, "--user" if is_user else "--system", "--man=no", "verify", str(file)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"XDG_RUNTIME_DIR": str(folder)},
    )
    if "Failed to initialize manager" in done.stderr:
        pytest.skip("systemd-analyze does not work here")
    assert (done.returncode, file.name in done.stderr) == (0, False), done.stderr


def test_the_unit_runs_join_with_the_options_given(run: Run, tmp_path: Path) -> None:
    code, unit, err = run("service", *JOIN, "--initial-peers", PEER, "--max_requests", "4")
    assert code == 0
    options = [*JOIN, "--initial-peers", PEER, "--max_requests", "4"]
    assert command_of(unit) == [sys.executable, "-m", "cosine_node", "join", *options]
    invited = (f"--initial-peers=cosine:network=home,{PEER}/p2p/{ID}", "--initial-peers", f"cosine:{PEER}/p2p/{ID}")
    says = ["--initial-peers", f"{PEER}/p2p/{ID}"]
    assert command_of(run("service", *JOIN, *invited).out)[-6:] == [*says, "--network", "home", *says]
    assert "WantedBy=default.target" in unit and "User=" not in unit
    assert "systemctl --user enable --now cosine-node" in err
    verified(unit, tmp_path, is_user=True)


def test_a_unit_for_the_machine_names_its_user(run: Run, tmp_path: Path) -> None:
    code, unit, err = run("service", "--system", "--user", "daemon", *JOIN)
    assert (code, "User=daemon\n" in unit, "WantedBy=multi-user.target" in unit) == (0, True, True)
    assert "sudo systemctl" in err and "/etc/systemd/system" in err
    verified(unit, tmp_path, is_user=False)


def test_a_bootstrap_node_is_a_service_too_and_machines_get_the_unit_and_its_place(run: Run) -> None:
    code, unit, _ = run("service", "--for", "bootstrap", "--host-maddr", PEER)
    assert (code, command_of(unit)[3:]) == (0, ["bootstrap", "--host-maddr", PEER])
    code, out, err = run("service", "--json", *JOIN)
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert told["file"] == "~/.config/systemd/user/cosine-node.service"
    assert "--json" not in command_of(told["unit"])


def test_paths_hold_in_any_working_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / "my model").mkdir()
    (tmp_path / "c.toml").touch()
    code, unit, _ = run(
        "--config", "c.toml", "service", "--role", "drafter", "--model=my model", "--identity", "key"
    )
    words = [word for argument in command_of(unit) for word in argument.split("=")]
    assert code == 0
    assert {str(tmp_path / name) for name in ("my model", "key", "c.toml")} <= set(words)


def test_options_of_the_environment_go_with_it(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COSINE_NETWORK", 'a "50 %" net')
    monkeypatch.setenv("COSINE_API_KEY", "secret")
    _, unit, _ = run("service", *JOIN)
    assert 'Environment="COSINE_NETWORK=a \\"50 %%\\" net"' in unit
    assert "secret" not in unit
    verified(unit, tmp_path, is_user=True)


def test_a_stop_leaves_time_to_drain() -> None:
    assert STOP_S > node.DRAIN_S + node.FAREWELL_S + GOODBYE_TIMEOUT_S + END_TIMEOUT_S
    unit = unit_of(["x"], environment={}, description="d", user=None)
    assert f"TimeoutStopSec={STOP_S}\n" in unit
    # p2pd must outlive the goodbye.
    assert "KillMode=mixed\n" in unit and "Restart=on-failure\n" in unit


@pytest.mark.parametrize(
    "line",
    [
        *("--role cook", "", "--for demo", "--user me --role drafter"),
        *("--role drafter --max-requests many", "--role drafter --no-such-option"),
    ],
)
def test_options_that_the_command_would_refuse_are_refused_now(run: Run, line: str) -> None:
    code, out, err = run("service", *line.split())
    assert (code, out) == (2, "")
    assert "Error: " in err


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_whatever_is_quoted_is_one_line(text: str) -> None:
    line = quoted(text)
    assert "\n" not in line
    assert line.count("%") == 2 * text.count("%") and line.count("$") == 2 * text.count("$")
