"""Checks compose.yaml and the Dockerfile, and runs the commands of compose.yaml without Docker."""

import json
import re
import shlex
import subprocess
import time
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest
from typer.main import get_command

from cosine_cli.program import app
from cosine_terminal.options import spread_peers
from tests.packaging.conftest import COMPOSE, ROOT, SERVICES, Composed

DOCKERFILE: Final = (ROOT / "Dockerfile").read_text()
OWN: Final = re.compile(r"cosine(?:-node)? (\w+)((?: (?!>|&&|\|)\S+)*)")


def own_commands(text: str) -> list[tuple[str, list[str]]]:
    plain = re.sub(r"\$\$\(cat /swarm/address\)", "ADDRESS", text)
    return [(name, shlex.split(rest.rstrip(")"))) for name, rest in OWN.findall(plain)]


@pytest.mark.parametrize("service", SERVICES)
def test_a_command_is_understood(service: str) -> None:
    commands: Any = getattr(get_command(app), "commands", {})
    scripts = [*SERVICES[service]["command"], *SERVICES[service]["healthcheck"]["test"]]
    found = [own for script in scripts for own in own_commands(script)]
    assert found
    for name, arguments in found:
        with commands[name].make_context(name, spread_peers(arguments)):
            pass


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_drains_and_keeps_what_must_last(service: str) -> None:
    told = SERVICES[service]
    assert int(told["stop_grace_period"].removesuffix("s")) >= 45
    assert "exec cosine" in told["command"][-1]
    mounts = {mount.split(":")[1]: mount.split(":")[0] for mount in told["volumes"]}
    assert mounts["/data"] == service
    assert set(mounts.values()) <= COMPOSE["volumes"].keys()
    # Its health is a question to its own process.
    check = " ".join(told["healthcheck"]["test"])
    assert "127.0.0.1" in check and not own_commands(check)


def test_others_reach_the_bootstrap_node_and_this_machine_alone_the_gateway() -> None:
    ports = {name: told["ports"] for name, told in SERVICES.items() if "ports" in told}
    assert ports == {"bootstrap": ["4001:4001"], "gateway": ["127.0.0.1:8000:8000"]}


def test_the_image_runs_as_a_user_whose_folders_that_must_last_are_in_a_volume() -> None:
    volumes = json.loads(re.findall(r"^VOLUME (.+)$", DOCKERFILE, re.MULTILINE)[0])
    homes = dict(re.findall(r"(XDG_(?:DATA|STATE|CACHE)_HOME)=(\S+)", DOCKERFILE))
    assert homes.keys() == {"XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"}
    assert all(home.startswith(tuple(volumes)) for home in homes.values())
    *_, last = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    assert re.findall(r"^USER (\w+)$", last, re.MULTILINE) == ["cosine"]
    assert re.findall(r"^STOPSIGNAL (\w+)$", last, re.MULTILINE) == ["SIGTERM"]


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == kept
    assert [source for source in copied if not (ROOT / source).exists()] == []


@pytest.mark.network
@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_the_services_form_a_swarm_that_answers_and_drains(composed: Composed) -> None:
    for name, told in SERVICES.items():
        assert health_of(composed, name, told["healthcheck"]["test"]) == 0, name
    domains: set[str] = set()
    # A text may be over before its drafters are found.
    for _ in range(20):
        done = completion(composed)
        assert done["usage"]["completion_tokens"] == 24
        domains |= {drafter["domain"] for drafter in done["metrics"]["speculative_decoding"]["drafters"]}
        if "code" in domains:
            break
        time.sleep(0.5)
    assert "code" in domains
    for name, service in reversed(composed.services.items()):
        grace_s = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert service.stop(grace_s) == 0, name


def completion(composed: Composed) -> Any:
    body = {"model": "cosine", "prompt": "def quicksort(values):", "max_tokens": 24, "temperature": 0}
    asked = Request(f"{composed.gateway}/v1/completions", data=json.dumps(body).encode(), method="POST")
    with urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def health_of(composed: Composed, service: str, test: list[str]) -> int:
    kind, *command = [composed.here(part, service) for part in test]
    arguments = ("sh", "-c", *command) if kind == "CMD-SHELL" else command
    environment = composed.environment(service)
    return subprocess.run(
        arguments, env=environment, capture_output=True, timeout=60, cwd=composed.folder
    ).returncode
