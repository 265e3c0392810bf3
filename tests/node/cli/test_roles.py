"""The verbs of roles are `join` with the options of one role; `cosine` shows those who ask what concerns them."""

import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from cosine_cli.program import app
from cosine_node.serving.options import (
    DraftOptions,
    HeadOptions,
    JoinPlan,
    RoleOptions,
    StageOptions,
    VerifyOptions,
)
from tests.node.cli.conftest import Run

PEER = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
PROGRAM: dict[str, Any] = getattr(get_command(app), "commands", {})


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[JoinPlan]:
    plans: list[JoinPlan] = []
    monkeypatch.setattr(sys.modules["cosine_node.cli.join"], "tell_findings", lambda plan, **_: plans.append(plan))
    return plans


@pytest.mark.parametrize(
    ("line", "of"),
    [
        ("draft {link} --model zoo:draft-code", DraftOptions),
        ("verify {link} --model zoo:target", VerifyOptions),
        ("stage {link} --model zoo:target --layers 0:4", StageOptions),
        ("head {link} --model zoo:target", HeadOptions),
    ],
)
def test_a_verb_joins_in_its_role_by_an_invitation(
    run: Run, planned: list[JoinPlan], line: str, of: type[RoleOptions]
) -> None:
    assert run(*line.format(link=f"cosine:network=home,{PEER}").split(), "--check").code == 0
    (plan,) = planned
    (node,) = plan.nodes
    assert type(node) is of
    assert (plan.network.initial_peers, plan.network.access.network) == ((PEER,), "home")


def test_each_verb_has_its_own_options_alone_and_together_they_have_all_of_join() -> None:
    offered = {
        verb: {one.name for one in PROGRAM[verb].params} - {"link"} for verb in ("draft", "verify", "stage", "head")
    }
    assert set.union(*offered.values()) == {one.name for one in PROGRAM["join"].params} - {"role", "over_stages"}
    assert {verb for verb, names in offered.items() if "layers" in names} == {"stage"}
    assert {verb for verb, names in offered.items() if "draft_model" in names} == {"verify", "head"}
    assert max(map(len, offered.values())) <= len(PROGRAM["join"].params) - 5


def test_an_option_of_another_role_is_unknown(run: Run) -> None:
    told = run("draft", PEER, "--layers", "0:4")
    assert told.code == 2 and "No such option: --layers" in told.err


def test_cosine_shows_the_commands_that_use_a_swarm_and_runs_the_others_too() -> None:
    def told(*given: str) -> str:
        code = "import sys; from cosine_cli.start import ask; sys.argv = ['cosine', *sys.argv[1:]]; ask()"
        done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, timeout=60, check=False)
        return done.stdout.decode()

    shown = told("--help")
    assert "Usage: cosine [OPTIONS]" in shown and "generate" in shown
    assert "bootstrap" not in shown and "simulate" not in shown
    assert "Example: cosine generate" in told("generate", "--help")
    assert "Usage: cosine bootstrap" in told("bootstrap", "--help")
