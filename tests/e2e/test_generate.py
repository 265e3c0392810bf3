"""The swarm's text equals that of transformers alone, token by token."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_engine import zoo
from cosine_p2p import AsyncClient, Generation
from tests.e2e.conftest import Swarm
from tests.e2e.nodes import run
from tests.e2e.reference import PROMPT, Case, encoded, greedy, own_cases
from tests.thoroughness import THOROUGH

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

NEW_TOKENS: Final = 24


def generated(swarm: Swarm, *arguments: str, stdin: str = "") -> dict[str, Any]:
    done = run("generate", *arguments, *swarm.peers, "--json", "--dtype", "float32", stdin=stdin)
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


async def ask_all(swarm: Swarm, cases: list[Case], strategy: str) -> list[Generation]:
    async with AsyncClient([swarm.boot.maddr], memory=False, dtype="float32", strategy=strategy) as client:
        return [await client.generate(case.prompt, max_new_tokens=NEW_TOKENS) for case in cases]


def is_as_expected(case: Case, generation: Generation) -> bool:
    """Equal at every position, except where the target's two best scores lie within 1e-4."""
    assert generation.usage.prompt_tokens == len(case.token_ids), case.prompt
    assert (generation.finish_reason == "length") is (generation.token_ids[-1] != 0), case.prompt
    is_equal = generation.token_ids == greedy(case.token_ids, NEW_TOKENS)
    assert is_equal or generation.swarm.near_ties, case.prompt
    return is_equal


@pytest.mark.parametrize(
    ("strategy", "per_domain"),
    [("cosine", 1), pytest.param("plain", 1, marks=THOROUGH), pytest.param("cosine", 13, marks=pytest.mark.soak)],
)
def test_prompts_give_what_transformers_gives(swarm: Swarm, strategy: str, per_domain: int) -> None:
    cases = own_cases(per_domain)
    done = asyncio.run(ask_all(swarm, cases, strategy))
    assert len(done) >= 4 * per_domain
    equal = [is_as_expected(case, generation) for case, generation in zip(cases, done, strict=True)]
    assert equal.count(False) <= 1
    assert (sum(generation.swarm.drafted for generation in done) > 0) is (strategy != "plain")
    assert {peer.peer_id for g in done for peer in g.swarm.verifiers} == {swarm.verifier.peer_id}


@pytest.mark.parametrize(
    ("strategy", "domain"), [("cosine", "literature"), pytest.param("plain", "code", marks=THOROUGH)]
)
def test_the_command_gives_what_transformers_gives(swarm: Swarm, strategy: str, domain: str) -> None:
    prompt = next((p.text for p in zoo.prompts(domain) if p.text), PROMPT)
    done = generated(swarm, prompt, "--max-new-tokens", "40", "--strategy", strategy)
    assert tuple(done["token_ids"]) == greedy(encoded(prompt), 40)
    assert done["swarm"]["strategy"] == strategy
    assert done["usage"]["completion_tokens"] == len(done["token_ids"])
    assert done["usage"]["prompt_tokens"] == len(encoded(prompt))
    assert {"text", "seconds", "time_to_first_token_s", "seed", "usage", "swarm"} <= done.keys()
    # The verifier's signed statements, for later audits.
    assert done["audit"]["evidence"] and done["audit"]["state"] in ("not drawn", "no auditor", "passed")
    assert {d["domain"] for d in done["swarm"]["drafters"]} <= {"code", "math"}


SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"keeper": {"type": "string", "maxLength": 12}, "lamps": {"type": "integer", "maximum": 99}},
    "required": ["keeper", "lamps"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def test_a_schema_in_a_file_makes_the_text_json_by_it(swarm: Swarm, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA), "utf-8")
    done = generated(swarm, PROMPT, "--schema", str(file))
    written = json.loads(done["text"])
    assert list(written) == ["keeper", "lamps"] and len(written["keeper"]) <= 12 and written["lamps"] <= 99
    assert done["finish_reason"] == "stop"
