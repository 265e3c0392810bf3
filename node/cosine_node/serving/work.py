"""Reports of a node's work for its volunteer. Pure."""

from dataclasses import dataclass, fields
from typing import Final, Self

from cosine_node.drafter.service import DrafterService
from cosine_node.stages.service import StageService
from cosine_node.verifier.service import VerifierService
from cosine_protocol.draft import ReleaseReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Counts of a node's work since its start, or between two reports."""

    requests: int

    def since(self, before: "Work") -> Self:
        """Return the work since `before`, an earlier report of the same node."""
        return type(self)(**{one.name: getattr(self, one.name) - getattr(before, one.name) for one in fields(self)})


LET_GO: Final = {
    ReleaseReason.UNWANTED: "no drafters were wanted",
    ReleaseReason.SELDOM_RIGHT: "it was seldom right",
    ReleaseReason.OTHERS_BETTER: "others were better",
    ReleaseReason.NOTHING_NEW: "it said nothing new",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWork(Work):
    """The work of a drafter; for the counts see `cosine_node.passes.counts.DrafterCounts`."""

    drafted_tokens: int
    accepted_tokens: int
    text_tokens: int
    unwanted: int
    seldom_right: int
    others_better: int
    nothing_new: int

    @classmethod
    def of(cls, service: DrafterService) -> Self:
        counts = service.counts
        return cls(
            requests=counts.drafted_requests,
            drafted_tokens=counts.sent_nodes,
            accepted_tokens=counts.accepted_tokens,
            text_tokens=counts.text_tokens,
            **{reason.name.lower(): counts.let_go[reason] for reason in LET_GO},
        )

    def __str__(self) -> str:
        if not (self.drafted_tokens or self.text_tokens):
            return "drafted nothing"
        let_go = [
            f"{times} time{'' if times == 1 else 's'} since {words}"
            for reason, words in LET_GO.items()
            if (times := getattr(self, reason.name.lower()))
        ]
        return "; ".join(
            [
                f"drafted {self.drafted_tokens} tokens{_requests(self.requests)}",
                f"of {self.text_tokens} tokens of their texts {self.accepted_tokens} "
                f"({_percent(self.accepted_tokens, self.text_tokens)}) came by it"
                if self.text_tokens
                else "no client has reported on them yet",
                *([f"let go {', '.join(let_go)}"] if let_go else []),
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyWork(Work):
    """The work of a verifier: output tokens committed, and how many of them a drafter had drafted."""

    passes: int
    text_tokens: int
    taken_tokens: int

    @classmethod
    def of(cls, service: VerifierService) -> Self:
        return cls(
            requests=service.counts.opened,
            passes=service.progress.steps,
            text_tokens=service.counts.committed_tokens,
            taken_tokens=service.counts.accepted_nodes,
        )

    def __str__(self) -> str:
        if not self.text_tokens:
            return "generated nothing"
        return (
            f"generated {self.text_tokens} tokens{_requests(self.requests)} in {self.passes} passes, "
            f"{_percent(self.taken_tokens, self.text_tokens)} of them drafted by others"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork(Work):
    """The work of a stage: chains opened by heads, passes, and the tokens in them."""

    passes: int
    fed_tokens: int

    @classmethod
    def of(cls, service: StageService) -> Self:
        counts = service.passes.counts
        return cls(requests=counts.opened, passes=service.progress.steps, fed_tokens=counts.fed_tokens)

    def __str__(self) -> str:
        if not self.passes:
            return "computed nothing"
        chains = f" for {self.requests} new chain{'' if self.requests == 1 else 's'}" if self.requests else ""
        return f"computed {self.fed_tokens} tokens in {self.passes} passes{chains}"


def _requests(count: int) -> str:
    """Return the number of new requests, or nothing if the work continued earlier ones."""
    return f" for {count} request{'' if count == 1 else 's'}" if count else ""


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
