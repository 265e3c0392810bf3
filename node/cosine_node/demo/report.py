"""The report of the demo: a comparison for each prompt, their summary, and its JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from cosine_node.cli.printing import json_safe
from cosine_p2p.generation import Generation

MAX_LATE_SHARE: Final = 0.05
"""A choice: with more late passes than this, a speedup would be that of this machine."""


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """One prompt, generated plainly and with cosine."""

    domain: str
    prompt: str
    plain: Generation
    cosine: Generation

    @property
    def identical(self) -> bool:
        return self.plain.token_ids == self.cosine.token_ids

    @property
    def speedup(self) -> float:
        return self.plain.seconds / self.cosine.seconds


@dataclass(frozen=True, slots=True)
class PassTiming:
    """Passes of all nodes, and those that took longer than the emulated curve; complete if all nodes reported."""

    passes: int
    late_passes: int
    is_complete: bool = True

    @property
    def late_share(self) -> float:
        return self.late_passes / self.passes if self.passes else 1.0

    @property
    def is_honest(self) -> bool:
        """True if figures of this run are the emulated devices' and not this machine's."""
        return self.is_complete and self.late_share <= MAX_LATE_SHARE


@dataclass(frozen=True, slots=True)
class Report:
    """All comparisons of a demo, the emulated latencies, and the timing of the passes."""

    rows: tuple[PromptComparison, ...]
    emulated: dict[str, object]
    pacing: PassTiming

    @property
    def median_speedup(self) -> float | None:
        """Median over domains, None where the machine was too slow for the emulated curves."""
        return median(row.speedup for row in self.rows) if self.pacing.is_honest else None

    def as_json(self) -> dict[str, Any]:
        """The demo's JSON object."""
        return {
            "prompts": [
                {
                    "domain": row.domain,
                    "prompt": row.prompt,
                    "identical": row.identical,
                    "plain": json_safe(row.plain),
                    "cosine": json_safe(row.cosine),
                    "speedup": round(row.speedup, 3) if self.pacing.is_honest else None,
                }
                for row in self.rows
            ],
            "median_speedup": self.median_speedup,
            "emulated": {
                **self.emulated,
                "passes": self.pacing.passes,
                "late_passes": self.pacing.late_passes,
                "held": self.pacing.is_honest,
            },
        }


def helpers(generation: Generation) -> str:
    """Accepted tokens by domain, most first, and those that the verifier copied from the text."""
    ranked = sorted(generation.drafters, key=lambda d: -d.accepted)
    named = [f"{d.domain} {d.accepted}" for d in ranked if d.accepted]
    # Every pass gives one token of the target's own, but for the last one, which may end in a drafted token.
    copied = len(generation.token_ids) - generation.rounds - sum(d.accepted for d in ranked)
    return ", ".join([*named, f"copied {copied}"] if copied > 0 else named) or "-"


def _curve_text(points: object) -> str:
    """A cost curve in words: milliseconds at each number of tokens."""
    pairs = points.items() if isinstance(points, dict) else ()
    return ", ".join(f"{milliseconds:g} ms at {tokens}" for tokens, milliseconds in pairs) + " tokens"


def summary(report: Report) -> Sequence[str]:
    """The sentences under the table."""
    emulated, pacing = report.emulated, report.pacing
    ties = sum(row.plain.near_ties + row.cosine.near_ties for row in report.rows)
    lines = [
        f"Emulated: a verifier pass of {_curve_text(emulated['verifier_pass_ms'])},",
        f"          a drafter pass of {_curve_text(emulated['drafter_pass_ms'])},",
        f"          RTT {emulated['client_to_verifier_rtt_ms']:g} ms client to verifier and "
        f"{emulated['client_to_drafter_rtt_ms']:g} ms client to drafter.",
        f"Texts identical: {'yes' if all(row.identical for row in report.rows) else 'NO'}, near-ties met: {ties}.",
    ]
    if report.median_speedup is None:
        lines.append(
            f"No speedup is quoted: {100 * pacing.late_share:.0f} % of {pacing.passes} passes took longer here "
            "than the emulated devices take."
        )
    else:
        lines.append(
            f"Speedup of cosine over plain, median over domains: {report.median_speedup:.2f}x "
            f"({100 * pacing.late_share:.1f} % of {pacing.passes} passes were late)."
        )
    return lines
