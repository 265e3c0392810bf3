"""docs/telemetry.md lists exactly the metrics there are, and what it shows works."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from typer.main import get_command

from cosine_node.cli.app import app
from cosine_node.metrics import GenerationMetrics
from cosine_p2p.client import AsyncClient
from tests.node.metrics.exported import Exported, exported

PEER = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"
PAGE = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text("utf-8")
ROW = re.compile(r"^\| `((?:cosine:|libp2p_)\w+)(?:\{([\w, ]+)\})?` \| (\w+) \| (.+) \|$", re.MULTILINE)
COMMANDS: dict[str, Any] = getattr(get_command(app), "commands", {})


def test_the_tables_are_what_is_exported() -> None:
    listed = [
        Exported(name, kind, text, frozenset(labels.split(", ")) if labels else frozenset())
        for name, labels, kind, text in ROW.findall(PAGE)
    ]
    assert sorted(listed, key=lambda each: each.name) == sorted(exported(), key=lambda each: each.name)


@pytest.mark.parametrize("line", [line for line in PAGE.splitlines() if line.startswith("cosine-node ")])
def test_its_commands_are_understood(line: str) -> None:
    _, name, *arguments = shlex.split(line)
    with COMMANDS[name].make_context(name, arguments) as context:
        assert (context.params["metrics_port"], context.params["metrics_host"]) == (9100, "127.0.0.1")


def test_a_client_takes_the_collector_as_it_is() -> None:
    collector = GenerationMetrics(CollectorRegistry(), model_name="m")
    AsyncClient(initial_peers=[PEER], observer=collector)
