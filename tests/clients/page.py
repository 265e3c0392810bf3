"""The page about clients of other makers: how each is pointed at a gateway, and what came of its jobs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.clients.catalogue import Client
from tests.clients.installation import Outcome

TEXT: Final = """# Clients

Programs of other makers that talk to a [gateway](gateway.md) as they are. The first table says what to set: where
the gateway listens, a key (any, where the gateway has none), and the model, `cosine` or the target's own name.

{settings}

Each was installed by itself from its registry, and did its jobs at a gateway over a verifier and a drafter of
{target}, processes on one machine. {done} of {all} jobs were done.

{results}

The model is small. So a call of a tool is required where a client can say so, and where it cannot, the tool is only
offered and a text will do. Nothing is said about what texts are good for.

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
    rows = [
        (each.client.name if first else "", each.version if first else "", outcome.job, result(outcome))
        for each in tried
        for first, outcome in zip([True, *[False] * len(each.outcomes)], each.outcomes, strict=False)
    ]
    return TEXT.format(
        settings=table(("client", "set"), [(each.client.name, each.client.set_by) for each in tried]),
        results=table(("client", "version", "job", "result"), rows),
        target=target,
        done=sum(not outcome.failed for outcome in outcomes),
        all=len(outcomes),
    )


def result(outcome: Outcome) -> str:
    """A cell: what was shown, or why not, without what Markdown would read in it."""
    if not outcome.failed:
        return outcome.shown
    plain = outcome.failed.translate({ord(mark): " " for mark in "|`*_<>[]\n"})
    return f"**not done**: {' '.join(plain.split())}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
