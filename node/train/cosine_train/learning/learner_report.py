"""The state of a learner, as `learned`, `status` and the monitor read it in its folder; it is never published."""

import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Final

from cosine_p2p.directory.learned_name import DIGEST_CHARACTERS
from cosine_train.learning.decision import HELD_OUT_TOKENS, NEW_TOKENS, Acceptance, LearningState
from cosine_train.learning.home import find_homes, state_file
from cosine_train.learning.stream_store import KeptStreams, read_kept
from cosine_train.learning.versions import SHIPPED, LiveVersion, Versions

NAME: Final = "now.json"
"""The file of `LearnerNow` in a learner's folder."""
LOCK: Final = "running"
"""The file that a learner locks while it runs; the system unlocks it however the process ends."""


class Activity(StrEnum):
    """Activities of a learner."""

    WAITING = "waiting for texts"
    LEARNING = "learning"
    COMPARING = "comparing the version that serves with the one before it"
    STOPPED = "stopped until its requests have ended"
    SWITCHING = "waiting to switch versions"
    FAILED = "waiting before it tries again; the node's log has the reason"
    ABSENT = "not running"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerNow:
    """The activity of a learner, and the acceptance of the version `version` since it serves, in all requests.

    `new_tokens` are those of kept texts that were not used yet.
    """

    activity: Activity = Activity.WAITING
    version: int = SHIPPED
    live_since: Acceptance = field(default_factory=Acceptance)
    new_tokens: int = 0

    @classmethod
    def read(cls, folder: Path) -> "LearnerNow":
        """Read the file in a folder; the initial state if it is missing or damaged."""
        match state_file(folder, NAME).read():
            case {
                "activity": str(activity),
                "version": int(version),
                "live_since": {"right": int(right), "tokens": int(tokens)},
                "new_tokens": int(new_tokens),
            } if activity in set(Activity) and 0 <= right <= tokens:
                live_since = Acceptance(right, tokens)
                activity = Activity(activity)
                return cls(activity=activity, version=version, live_since=live_since, new_tokens=new_tokens)
        return cls()

    def write(self, folder: Path) -> None:
        state_file(folder, NAME).write(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerFacts:
    """The contents of a learner's folder."""

    folder: Path
    peer_id: str
    model: str
    target: str
    live: LiveVersion
    versions: tuple[int, ...]
    kept: KeptStreams
    state: LearningState
    now: LearnerNow

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield the facts for people: a name and a short text each."""
        state, kept, live, now = self.state, self.kept, self.live, self.now
        does = str(now.activity)
        if now.activity is Activity.WAITING:
            does += f": has {now.new_tokens:,} of the {NEW_TOKENS:,} new tokens that a round takes"
            if kept.held_out_tokens < HELD_OUT_TOKENS:
                does += f", and {kept.held_out_tokens:,} of the {HELD_OUT_TOKENS:,} to measure it by"
        yield "does", does
        digest = f" ({live.digest[:DIGEST_CHARACTERS]})" if live.digest else ""
        yield "serves", "the model as it came" if live.number == SHIPPED else f"version {live.number}{digest}"
        if live.number != SHIPPED and state.after.tokens:
            yield (
                "held out",
                f"right at {_percent(state.before)} of {_count(state.after.tokens, 'token')} before its round, "
                f"at {_percent(state.after)} after",
            )
        before, since = state.live_before, now.live_since
        told = f"right at {_percent(since)} of {_count(since.tokens, 'token')} since it serves"
        if not since.tokens:
            told = "nothing drafted since it serves"
        yield "live", f"{told}, at {_percent(before)} of {before.tokens:,} before" if before.tokens else told
        texts, clients = _count(kept.streams, "text"), _count(kept.clients, "client")
        yield "keeps", f"{texts} of {clients}, {_count(kept.tokens, 'token')}, {kept.disk_bytes / 1e6:.1f} MB"
        versions = ", ".join(map(str, self.versions)) or "none"
        back = _count(state.rollbacks, "version")
        yield "has learned", f"{_count(state.rounds, 'round')}, {back} taken back, versions on disk: {versions}"

    def as_object(self) -> dict[str, Any]:
        """Return the facts for machines. Shares are fractions; those named `live` count all requests."""
        state, kept = self.state, self.kept
        return {
            "model": self.model,
            "target": self.target,
            "peer_id": self.peer_id,
            "folder": str(self.folder),
            "doing": self.now.activity,
            "new_tokens": self.now.new_tokens,
            "streams": kept.streams,
            "tokens": kept.tokens,
            "clients": kept.clients,
            "stream_bytes": kept.disk_bytes,
            "versions": list(self.versions),
            "live": self.live.number,
            "live_digest": self.live.digest,
            "added_expertise": list(self.live.expertise),
            "rounds": state.rounds,
            "rollbacks": state.rollbacks,
            "acceptance_before": round(state.before.share, 4),
            "acceptance_after": round(state.after.share, 4),
            "held_out_tokens": state.after.tokens,
            "live_acceptance_before": round(state.live_before.share, 4),
            "live_tokens_before": state.live_before.tokens,
            "live_acceptance_since": round(self.now.live_since.share, 4),
            "live_tokens_since": self.now.live_since.tokens,
        }


def read_reports(folder: Path | None = None) -> Iterator[LearnerFacts]:
    """Yield the learners of this user, running or not."""
    for home, about in find_homes(folder):
        try:
            kept = read_kept(home)
        except sqlite3.Error:
            # The learner moves the damaged file aside at its next start.
            kept = KeptStreams()
        versions, now = Versions(home), LearnerNow.read(home)
        live = versions.word()
        yield LearnerFacts(
            folder=home,
            peer_id=str(about.get("peer_id", "")),
            model=str(about.get("model", "")),
            target=str(about.get("target", "")),
            live=live,
            versions=tuple(versions.all()),
            kept=kept,
            state=LearningState.read(home),
            now=replace(
                now,
                activity=now.activity if is_running(home) else Activity.ABSENT,
                version=live.number,
                live_since=now.live_since if now.version == live.number else Acceptance(),
            ),
        )


def reports_by_peer(folder: Path | None = None) -> dict[str, LearnerFacts]:
    """Return the learners by peer id; of several with one identity, the running one."""
    reports = sorted(read_reports(folder), key=lambda one: one.now.activity is not Activity.ABSENT)
    return {report.peer_id: report for report in reports}


def hold(folder: Path) -> BinaryIO:
    """Lock a folder as that of a running learner until the file is closed or the process ends."""
    import fcntl

    file = (folder / LOCK).open("wb")
    # Shared: a reader holds the exclusive lock for a moment.
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def is_running(folder: Path) -> bool:
    """Return True if a learner of any process holds the folder."""
    try:
        import fcntl
    except ModuleNotFoundError:
        # No node runs on Windows.
        return False
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _percent(acceptance: Acceptance) -> str:
    return f"{100 * acceptance.share:.1f} %"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
