"""Figures that pages quote are those of the benchmarks and tests they come from."""

import json
import re
from typing import Any, Final

import pytest

from cosine_node.drafter.receipt_ledger import MAX_KEPT
from cosine_node.gateway.body import BODY_TIMEOUT_S, MAX_BODY_BYTES
from cosine_node.gateway.http.server import HEADER_S
from cosine_node.serving.discover_service import QUESTION_BURST, QUESTION_RATE
from cosine_node.verifier.audits import TOKENS_PER_S
from cosine_p2p.directory.peer_clocks import WARNED_S
from cosine_p2p.directory.postings import MAX_OWNER_CELLS, MAX_STORED_BYTES
from cosine_p2p.request.options import USUAL_WINDOW_TOKENS
from cosine_p2p.session.verifier_dials import MAX_DIALS
from cosine_p2p.transport.addresses import MAX_TRIES
from cosine_p2p.transport.channel import READ_PLACES, READ_RATE, SILENCE_S
from cosine_p2p.transport.full.hivemind import MAX_STREAMS, MAX_STREAMS_EACH
from cosine_p2p.transport.full.relay import CIRCUIT_BUFFER_BYTES, CIRCUIT_BYTES, CIRCUITS_EACH
from cosine_p2p.trust.earned_credit import MOST_TOKENS
from cosine_protocol import limits
from tests.docs.pages import DOCS
from tests.fuzz.kept import kept
from tests.fuzz.target import regressions
from tests.fuzz.targets import TARGETS
from tests.fuzz.test_fuzz import CHECKED_PART
from tests.swarm.test_soak import CHECKED_SEEDS, SOAKED_SEEDS

SECURITY: Final = (DOCS / "security.md").read_text("utf-8")
QUESTIONS: Final = (DOCS / "faq.md").read_text("utf-8")


def told(pattern: str, text: str) -> str:
    (figure, *_) = re.findall(pattern, text)
    return str(figure)


def published(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((DOCS / "benchmarks" / f"{name}.json").read_text("utf-8"))
    return result


def test_where_the_promise_was_missed_by_the_clock() -> None:
    ways = [way for way in published("here_smol_llama")["findings"]["ways"] if way["way"] == "cosine"]
    ours = [way["times_plain"] for way in ways]
    [found] = re.findall(
        r"reached ([\d.]+) to ([\d.]+) times plain\s+decoding, below it at (\d) of (\d) points", QUESTIONS
    )
    slower = sum(times < 1.0 for times in ours)
    assert found == (f"{min(ours):.2f}", f"{max(ours):.2f}", str(slower), str(len(ours)))


def test_the_tokens_that_were_compared() -> None:
    findings = published("rtt")["findings"]
    assert told(r"0 of ([\d,]+) tokens", SECURITY) == f"{findings['tokens']:,}"
    assert findings["mismatches"] == 0


def test_what_the_costliest_liar_costs() -> None:
    measured = f"{published('liars')['findings']['most_percent']:.1f}"
    assert told(r"requests take ([\d.]+) % longer", SECURITY) == measured
    assert told(r"measured: at most ([\d.]+) %", QUESTIONS) == measured


def test_the_seeds_of_the_soak() -> None:
    assert told(r"([\d,]+) seeds", SECURITY) == f"{SOAKED_SEEDS:,}"
    assert told(r"(\d+) in each check", SECURITY) == f"{CHECKED_SEEDS}"


@pytest.mark.parametrize(
    ("pattern", "figure"),
    [
        (r"the last (\d+) tokens of the prompt", USUAL_WINDOW_TOKENS),
        (r"at most (\d+) records a key", limits.MAX_CELL_OWNERS),
        (r"in (\d+) cells of each owner", MAX_OWNER_CELLS),
        (r"at most (\d+) MiB of records a node", MAX_STORED_BYTES >> 20),
        (r"(\d+) questions a second of a peer", QUESTION_RATE),
        (r"questions a second of a peer, ([\d,]+) at once", QUESTION_BURST),
        (r"([\d,]+) messages or KiB a second", READ_RATE),
        (r"a node with more than (\d+) places", READ_PLACES),
        (r"(\d+) streams of one peer at a time", MAX_STREAMS_EACH),
        (r"streams of one peer at a time, ([\d,]+) in all", MAX_STREAMS),
        (r"every (\d+)nd output token", limits.TRANSCRIPT_EVERY_TOKENS),
        (r"(\d+) tokens of each verifier and of each client", MOST_TOKENS),
        (r"(\d+) are kept, and one verifier's", MAX_KEPT),
        (r"two at once, (\d+) tokens a second", TOKENS_PER_S),
        (r"heartbeats every second, a deadline of (\d+) s on silence", SILENCE_S),
        (r"dialled (\d+) times a minute at most", MAX_TRIES),
        (r"at most (\d+) at a time; who cannot", MAX_DIALS),
        (r"relay with (\d+) KiB of buffers", CIRCUIT_BUFFER_BYTES >> 10),
        (r"(\d+) circuits of a peer", CIRCUITS_EACH),
        (r"30 minutes and (\d+) MiB each", CIRCUIT_BYTES >> 20),
        (r"a header must come whole within (\d+) s", HEADER_S),
        (r"a body within (\d+) s", BODY_TIMEOUT_S),
        (r"(\d+) MiB a body", MAX_BODY_BYTES >> 20),
        (r"(\d+) targets; ", len(TARGETS)),
        (r"targets; (\d+) stored inputs", len(regressions())),
        (r"and (\d+) that reach far", sum(len(list(kept(name))) for name in TARGETS)),
        (r"reach far; ([\d,]+) new ones", sum(target.runs // CHECKED_PART for target in TARGETS.values())),
        (r"from (\d+) s on; records are refused", WARNED_S),
        (r"records are refused from (\d+) s", limits.MAX_RECORD_SKEW_S),
    ],
)
def test_the_limits_in_the_promises_are_those_of_the_code(pattern: str, figure: float) -> None:
    assert told(pattern, SECURITY) == f"{figure:,.0f}"
