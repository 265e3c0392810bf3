"""The page about clients of other makers: how each is pointed at a gateway, and what came of its jobs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.clients.catalogue import Client
from tests.clients.installation import Outcome

TEXT: Final = """# Clients

Programs of other makers that work with a [gateway](gateway.md) unchanged, and what to set in each. Each was
installed by itself from its registry and did its jobs (chats, streams, structured output, tools, responses, turns
of an agent) at a gateway over a verifier and a drafter of {target}: {done} of {all} jobs were done. The model is
small, so tools are required where a client can require them, and nothing is said about what texts are good for.

{table}
{failures}
Made by `python -m tests.clients --out docs/clients.md`, which needs PyPI, the npm registry and Node.js.
"""


@dataclass(frozen=True, slots=True)
class Tried:
    """A client of some version, and what came of its jobs."""

    client: Client
    version: str
    outcomes: Sequence[Outcome]


def page_of(tried: Sequence[Tried], *, target: str) -> str:
    """The page about clients that were tried at a swarm of a target."""
    outcomes = [outcome for each in tried for outcome in each.outcomes]
    rows = [(each.client.name, each.version, _done(each.outcomes), each.client.set_by) for each in tried]
    failures = [
        f"- {each.client.name}, {outcome.job}: {result(outcome)}"
        for each in tried
        for outcome in each.outcomes
        if outcome.failed
    ]
    return TEXT.format(
        table=table(("client", "version", "jobs", "set"), rows),
        failures="\n".join(["", *failures, ""]) if failures else "",
        target=target,
        done=sum(not outcome.failed for outcome in outcomes),
        all=len(outcomes),
    )


def _done(outcomes: Sequence[Outcome]) -> str:
    return f"{sum(not outcome.failed for outcome in outcomes)} of {len(outcomes)}"


def result(outcome: Outcome) -> str:
    """What was shown, or why not, without what Markdown would read in it."""
    if not outcome.failed:
        return outcome.shown
    plain = outcome.failed.translate({ord(mark): " " for mark in "|`*_<>[]\n"})
    return f"**not done**: {' '.join(plain.split())}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
