"""`cosine generate`: options, output, tools, and the model's generation config."""

import json
import random
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cosine_cli import asking
from cosine_cli.generate import config_lines
from cosine_engine.curve import CostCurve
from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p import network
from cosine_p2p.access import Access
from cosine_p2p.client import Swarm
from cosine_p2p.request.results import AppliedConfig
from cosine_p2p.text.target import Target
from cosine_protocol.records import GenerationDefaults
from cosine_protocol.request import Sampling
from tests.cosine_p2p.samples import identity_of
from tests.cosine_p2p.test_blocking import InProcess
from tests.node.cli.conftest import Run
from tests.swarm.reference import plain_stream, prompt_of, target_engine
from tests.swarm.tool_letters import END, ToolLetters, calling_engine

PROMPT = prompt_of(random.Random("command"))
NO_CONFIG = ("--generation-config", "none")
CHAT = GenerationDefaults(
    do_sample=True, temperature=0.9, repetition_penalty=1.2, max_new_tokens=9, not_honoured=("num_beams",)
)


def join_swarm(monkeypatch: pytest.MonkeyPatch, engine: ScriptedEngine, **options: Any) -> None:
    """Let the command join a simulated swarm with one verifier."""

    async def join() -> Swarm:
        swarm = await SimulatedSwarm(one_way_s=0.0, **options).__aenter__()
        await swarm.verifier(engine, curve=CostCurve(((1, 0.0005), (32, 0.0006))))
        return InProcess(swarm)

    monkeypatch.setattr(asking, "joining_once", lambda *_, **__: join)


@pytest.fixture
def generate(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command over a target with a generation config."""
    join_swarm(monkeypatch, target_engine(), facts=facts_of(generation_defaults=CHAT))
    return partial(run, "generate", PROMPT)


def expected_text(tokens: int, **sampling: Any) -> str:
    return LetterCodec().decode(plain_stream(PROMPT, Sampling(**sampling), tokens=tokens))


def test_the_models_generation_config_is_applied_and_can_be_disabled(generate: Run) -> None:
    done = json.loads(generate("--seed", "5", "--json").out)
    assert done["text"] == expected_text(9, temperature=0.9, repetition_penalty=1.2, seed=5)
    options = {"temperature": 0.9, "repetition_penalty": 1.2, "max_new_tokens": 9}
    assert done["generation_config"] == {"options": options, "not_honoured": ["num_beams"]}
    done = json.loads(generate("--seed", "5", "--json", *NO_CONFIG).out)
    assert done["text"] == expected_text(128)
    assert done["generation_config"] == {"options": {}, "not_honoured": []}


def test_the_summary_counts_all_tokens_by_origin(generate: Run) -> None:
    told = generate("--max-new-tokens", "24", *NO_CONFIG).err
    found = re.search(r"; tokens by origin: (.*target alone .*); finished by length", told)
    assert found is not None and sum(map(int, re.findall(r"\d+", found[1]))) == 24


def test_log_probabilities_are_printed_in_json_only(generate: Run) -> None:
    options = ("--max-new-tokens", "5", *NO_CONFIG, "--logprobs", "2")
    told = generate(*options)
    assert (told.code, "--logprobs requires --json" in told.err) == (2, True)
    done = json.loads(generate(*options, "--json").out)
    assert [each["token_id"] for each in done["logprobs"]] == done["token_ids"]
    assert all(len(each["top"]) == 2 and each["logprob"] < 0 for each in done["logprobs"])
    assert done["prompt_logprobs"] == []


def test_the_accepted_tokens_of_a_prediction_are_reported(generate: Run, tmp_path: Path) -> None:
    expected = expected_text(24)
    file = tmp_path / "expected.txt"
    file.write_text(expected[:20] + "1234", "utf-8")
    told = generate("--max-new-tokens", "24", *NO_CONFIG, "--prediction", str(file))
    assert told.out.strip() == expected
    found = re.search(r"of 24 predicted tokens ([0-9]+) came", told.err)
    assert found is not None and int(found[1]) >= 20


def test_a_folder_of_texts_is_drafted_from(generate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    asked = ("--max-new-tokens", "60", *NO_CONFIG, "--json")
    (tmp_path / "text").write_text(expected_text(60), "utf-8")
    without, drafted = (json.loads(generate(*asked, *own).out) for own in ((), ("--draft-from", str(tmp_path))))
    assert drafted["text"] == without["text"] == expected_text(60)
    assert drafted["swarm"]["rounds"] < without["swarm"]["rounds"]
    told = generate(*asked, "--draft-from", str(tmp_path / "text"))
    assert (told.code, "no folder of texts" in told.out) == (2, True)


@pytest.mark.parametrize(("is_terminal", "escape"), [(True, "\ufffd"), (False, "\x1b")])
def test_control_characters_of_a_text_do_not_reach_a_terminal(
    generate: Run, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, escape: str
) -> None:
    monkeypatch.setattr(LetterCodec, "decode", lambda self, tokens: "\x1b[2J" * len(tokens))
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    assert generate("--max-new-tokens", "3", *NO_CONFIG).out == f"{escape}[2J" * 3 + "\n"


PEER_ID = identity_of(1).peer_id
TCP = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER_ID}"
QUIC = f"/ip4/192.0.2.1/udp/4001/quic-v1/p2p/{PEER_ID}"


@pytest.mark.parametrize(
    ("maddrs", "transport"),
    [
        ((TCP,), "light"),
        ((TCP, "nonsense"), "light"),
        ((TCP, QUIC), None),
        ((f"/dnsaddr/peers.example/p2p/{PEER_ID}",), None),
    ],
)
def test_the_environment_and_the_installation_decide_on_the_transport_then_the_addresses(
    monkeypatch: pytest.MonkeyPatch, maddrs: tuple[str, ...], transport: str | None
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(network, "joining", lambda *_, transport, **__: seen.append(transport))
    monkeypatch.setattr(asking, "find_spec", lambda name: name)
    asking.joining_once(maddrs, Access())
    monkeypatch.setenv("COSINE_TRANSPORT", "full")
    asking.joining_once(maddrs, Access(), Target("name", folder=Path("folder")))
    monkeypatch.delenv("COSINE_TRANSPORT")
    monkeypatch.setattr(asking, "find_spec", lambda _: None)
    asking.joining_once(maddrs, Access())
    assert seen == [transport, None, None]


TOOLS = [{"type": "function", "function": {"name": "use", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("as_json", [False, True])
def test_tools_of_a_file_are_called_and_the_calls_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_json: bool
) -> None:
    join_swarm(monkeypatch, calling_engine(), codec=ToolLetters(), facts=facts_of((END,)))
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(TOOLS), "utf-8")
    asked = ["generate", "a tale", "--chat", "--tools", str(file), "--tool-choice", "use"]
    result = run(*asked, *(["--json"] if as_json else []))
    assert result.code == 0
    if as_json:
        (call,) = json.loads(result.out)["tool_calls"]
        assert (call["name"], call["arguments"]) == ("use", "{}")
    else:
        assert result.out == "use {}\n"


def test_a_file_without_tools_and_tools_without_a_chat_are_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    for content, told in (("{}", "must hold a list of tools"), ("[", "is not JSON"), ("[1]", "must hold a list")):
        file.write_text(content, "utf-8")
        result = run("generate", "a", "--chat", "--tools", str(file))
        assert result.code == 2 and told in result.err
    assert "give --chat" in run("generate", "a", "--tools", str(file)).err
    assert "cannot be read" in run("generate", "a", "--chat", "--tools", str(tmp_path / "none")).err


def test_the_applied_config_is_described_in_words() -> None:
    applied = AppliedConfig(options={"temperature": 0.7, "top_k": 20}, not_honoured=("num_beams", "\x1b[2J"))
    given, lost = config_lines(applied)
    assert given.startswith("the model's own generation config gave temperature 0.7, top_k 20;")
    assert "num_beams" in lost and "\x1b" not in lost
    assert config_lines(AppliedConfig()) == []
