"""Commands by which this machine would help a swarm, and what to expect of each, by measurements. Pure.

Theory of operation: a pass over one token reads every weight once, so it takes the bytes of the weights divided by
the bytes that the machine reads a second; other work makes it up to `SLOWEST` times as long. A draft reaches a
verifier after its own time and the round trip. It is useful if the tokens that the verifier wrote meanwhile are the
drafted ones, each with probability `ACCEPTANCE`.
"""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import Final

from cosine_engine.load_options import join_options
from cosine_engine.pool_size import AUTO, CARD_MEMORY_PART
from cosine_node.chains.outlook import ACCEPTANCE, outlooks, sentence_of
from cosine_node.chains.planning import ModelNeeds, fit_of, served_dtype
from cosine_node.stages.parts import size_text
from cosine_p2p.directory.coverage import gaps_sentence, unheld
from cosine_p2p.session.peer_search import MAX_ASKED_DRAFTERS
from cosine_p2p.survey import NodeSight
from cosine_protocol.records import NodeRecord, Role

SLOWEST: Final = 2.8
"""That of SmolLM2 in int4, on two cores; 1.6 in float32. Larger models come closer to 1."""
MEMORY_PART: Final = 0.5
"""The part of free memory that is given, as that of a stage with `--memory auto`."""
WORTH: Final = 1.1
"""The least estimated speed-up for which a drafter is suggested."""
DRAFTED: Final = ACCEPTANCE + ACCEPTANCE**2 + ACCEPTANCE**3
"""The right ones of the three drafts of a pass over four tokens."""
MOST: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMachine:
    """The measurement of this machine.

    read_bytes_per_s: That of the first card, or of the processor without cards.
    drafters: Values of `--model` with the seconds of a token, None if unknown, and the bytes of its process.
    """

    cores: int
    memory_bytes: int
    read_bytes_per_s: float
    cards: tuple[tuple[str, int], ...] = ()
    drafters: tuple[tuple[str, float | None, int], ...] = ()

    @property
    def given_bytes(self) -> int:
        """The memory to give."""
        return int(CARD_MEMORY_PART * self.cards[0][1] if self.cards else MEMORY_PART * self.memory_bytes)

    def pass_text(self, read_bytes: float) -> str:
        """The estimated time of a pass that reads this number of bytes."""
        least_ms = 1e3 * read_bytes / self.read_bytes_per_s
        return f"{least_ms:.1f} to {SLOWEST * least_ms:.1f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSwarm:
    """A target, its sizes if known here, and its nodes that answer. `way` are the arguments that lead to them."""

    target: str
    needs: ModelNeeds | None = None
    way: tuple[str, ...] = ()
    nodes: tuple[NodeSight, ...] = ()

    def of_role(self, role: Role) -> list[NodeRecord]:
        return [sight.record for sight in self.nodes if sight.record.role == role]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A command, the reason to run it, and what to expect."""

    command: str
    why: str
    expect: str


@dataclass(frozen=True, slots=True)
class Advice:
    """At most `MOST` suggestions, the most urgent first, and the reasons against others."""

    suggestions: list[Suggestion] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def add(self, words: Sequence[str], why: str, expect: str) -> None:
        if len(self.suggestions) < MOST:
            self.suggestions.append(Suggestion(shlex.join(("cosine-node", *words)), why, expect))


def advise(here: MeasuredMachine, seen: TargetSwarm) -> Advice:
    """Suggest commands for this machine: lacking parts or the whole of the target, then drafters."""
    advice = Advice()
    if seen.needs is None:
        advice.reasons.append(f"The size of {seen.target} is not known here, so only drafters are judged.")
    else:
        _judge_holding(here, seen, seen.needs, advice)
    if seen.way:
        _judge_drafters(here, seen, advice)
        return advice
    for model, token_s, memory_bytes in here.drafters:
        why = "Drafts pay where a pass of the target takes longer than a token here and the way to it."
        words = ("draft", "LINK", "--model", model, "--target", seen.target)
        advice.add(words, why, f"{_cost(token_s, memory_bytes)}.")
    return advice


def _judge_holding(here: MeasuredMachine, seen: TargetSwarm, needs: ModelNeeds, advice: Advice) -> None:
    """Suggest layers without a stage, a head for stages without one, or a verifier where one more is needed."""
    stages, verifiers = seen.of_role(Role.STAGE), seen.of_role(Role.VERIFIER)
    held = [record.stage.held for record in stages if record.stage is not None]
    fit, gaps = fit_of(needs, here.given_bytes, held), unheld(held, layers=needs.sizes.layers)
    model, given = (*seen.way, "--model", seen.target), size_text(here.given_bytes)
    free = sum(one.load_requests < one.capacity_requests for one in verifiers)
    if stages and not gaps and not any(one.stages for one in verifiers):
        expect = sentence_of(outlooks(stages)[0])
        advice.add(("head", *model), "All layers are held, and no head generates with them.", expect)
    elif (stages and gaps) or not (verifiers or fit.is_whole):
        if (part := fit.layers) is None:
            advice.reasons.append(f"Not one layer of {seen.target} fits into {given}.")
            return
        dtype = served_dtype(stages)
        took = here.pass_text(needs.read_bytes(len(part), is_last=part.is_last))
        advice.add(
            ("stage", *model, "--layers", str(part), *(() if dtype == AUTO else ("--dtype", dtype))),
            gaps_sentence(gaps),
            f"{took} of each pass, {size_text(fit.bytes)} of memory; of use once others hold the rest.",
        )
    elif len(verifiers) > 1 and free:
        advice.reasons.append(f"{free} of {len(verifiers)} verifiers have places free: no other is needed.")
    elif not fit.is_whole:
        advice.reasons.append(
            f"{seen.target} takes {size_text(fit.whole_bytes)} as a whole, and {given} are given."
        )
    else:
        reasons = {
            "It starts a network, to which `cosine-node invite` invites others.": not seen.way,
            "No verifier answers, so nothing is generated.": not verifiers,
            "All verifiers have all their places taken.": not free,
            "There is only one verifier: no other can replace or judge it.": True,
        }
        took = here.pass_text(needs.read_bytes(needs.sizes.layers, is_last=True))
        theirs = f", where theirs takes {min(one.pass_us for one in verifiers) / 1e3:.1f} ms" if verifiers else ""
        # Only equal numerics continue each other's texts.
        usual = Counter(record.numerics for record in verifiers).most_common(1)
        advice.add(
            ("verify", *model, *(option for numerics, _ in usual for option in join_options(numerics))),
            next(why for why, holds in reasons.items() if holds),
            f"{took} a token without drafts{theirs}; at least {size_text(fit.whole_bytes)} of memory.",
        )


def _judge_drafters(here: MeasuredMachine, seen: TargetSwarm, advice: Advice) -> None:
    """Suggest the drafters of this machine, if a verifier would get their drafts in time."""
    verifiers = [one for one in seen.nodes if one.record.role == Role.VERIFIER and one.rtt_s is not None]
    best = max(verifiers, key=draft_limit_s, default=None)
    if best is None:
        return
    limit_s, pass_ms, rtt_ms = draft_limit_s(best), best.record.pass_us / 1e3, 1e3 * (best.rtt_s or 0.0)
    theirs = f"a pass of the target takes {pass_ms:.1f} ms, {rtt_ms:.1f} ms from here"
    if limit_s <= 0.0:
        advice.reasons.append(f"Drafts from here would come too late, or save too little: {theirs}.")
        return
    why = f"Drafters that answer: {len(seen.of_role(Role.DRAFTER))}; a text asks up to {MAX_ASKED_DRAFTERS}."
    for model, token_s, memory_bytes in here.drafters:
        expect = f"{_cost(token_s, memory_bytes)}; drafts pay up to {1e3 * limit_s:.1f} ms a token, since {theirs}."
        if (token_s or 0.0) > limit_s:
            advice.reasons.append(f"{model}: {expect}")
        else:
            advice.add(("draft", *seen.way, "--model", model, "--target", seen.target), why, expect)


def _cost(token_s: float | None, memory_bytes: int) -> str:
    if token_s is None:
        return "Its speed is measured at its start"
    return f"{1e3 * token_s:.1f} ms a token here, {size_text(memory_bytes)} of memory"


def draft_limit_s(verifier: NodeSight) -> float:
    """The time of a drafter's token up to which its drafts pay, at most that of a pass; 0 or less if they never do.

    Over stages a pass over four tokens takes about as long as one over one.
    """
    pass_s, four_tokens = verifier.record.pass_us / 1e6, max(1000, verifier.record.four_tokens_permille or 0) / 1000
    timely = (WORTH * four_tokens - 1.0) / DRAFTED
    return min(pass_s, pass_s * log(timely) / log(ACCEPTANCE) - (verifier.rtt_s or 0.0))
