"""A running request: its text, progress and rates, and its view in a snapshot."""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from cosine_p2p.request.origins import FORCED_SOURCE, HOME_SOURCE, OWN_SOURCES, OriginCount
from cosine_p2p.request.results import AppliedConfig, Chunk, DrafterReport, Generation, Progress
from cosine_tui.looks.formatting import short_name
from cosine_tui.state.snapshot import (
    DrafterView,
    Moment,
    OriginView,
    RequestDescription,
    RequestState,
    RequestView,
    Speeds,
    TextRun,
)

# Bounds of memory: more passes and intervals than a terminal has columns, and more text and moments than users
# scroll back to. The oldest are dropped.
MAX_PASSES: Final = 256
MAX_INTERVALS: Final = 256
MAX_TEXT_RUNS: Final = 4096
MAX_MOMENTS: Final = 256
WINDOW_S: Final = 3.0  # The interval of rates.


class Rate:
    """Samples of a growing count at monotonic times of the caller."""

    def __init__(self, *, began_s: float) -> None:
        self._samples: deque[tuple[float, float]] = deque([(began_s, 0.0)])

    def note(self, count: float, now_s: float) -> None:
        self._samples.append((now_s, count))
        # The newest sample before the window is its beginning.
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - WINDOW_S:
            self._samples.popleft()

    @property
    def per_s(self) -> float:
        """Growth a second over the window, initially 0."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


class SpeedHistory:
    """A growing count of tokens at equal intervals, which double when there are too many."""

    def __init__(self, *, began_s: float, interval_s: float = 0.5, limit: int = MAX_INTERVALS) -> None:
        self._began_s = began_s
        self._interval_s = interval_s
        self._limit = limit
        self._counts: list[float] = [0.0]
        self._noted: tuple[float, float] = (began_s, 0.0)

    def note(self, tokens: float, now_s: float) -> None:
        """Add a count, with linear interpolation since the last."""
        before_s, before = self._noted
        self._noted = (now_s, tokens)
        while (at_s := self._began_s + len(self._counts) * self._interval_s) <= now_s:
            share = (at_s - before_s) / (now_s - before_s) if now_s > before_s else 1.0
            self._counts.append(before + share * (tokens - before))
            if len(self._counts) > self._limit + 1:
                self._counts = self._counts[::2]
                self._interval_s *= 2

    @property
    def speeds(self) -> Speeds:
        pairs = zip(self._counts, self._counts[1:], strict=False)
        return Speeds(self._interval_s, tuple((after - before) / self._interval_s for before, after in pairs))


class TrackedRequest:
    """A running request; `number_of` returns a drafter's number from 1."""

    def __init__(
        self, number: int, description: RequestDescription, *, began_s: float, number_of: Callable[[str], int]
    ) -> None:
        self.number = number
        self.description = description
        self.seed: int | None = None
        self.state = RequestState.ASKING
        self.error = ""
        self.progress: Progress | None = None
        self._number_of = number_of
        self._began_s = began_s
        self._first_s: float | None = None
        self._seconds = 0.0
        self._text: deque[TextRun] = deque(maxlen=MAX_TEXT_RUNS)
        self.tokens = 0
        self._origins = OriginCount()
        self._passes: deque[int] = deque(maxlen=MAX_PASSES)
        self._last_round = 0
        self._verifiers: list[str] = []
        self._rates: defaultdict[str, Rate] = defaultdict(lambda: Rate(began_s=began_s))
        self._speeds = SpeedHistory(began_s=began_s)
        self._timeline: deque[Moment] = deque([Moment(0.0, "asked")], maxlen=MAX_MOMENTS)
        self._account: Generation | None = None

    @property
    def peer_ids(self) -> tuple[str, ...]:
        """The verifiers that served it, and the drafters with tallies."""
        reports = self.progress.drafters if self.progress else ()
        return (*self._verifiers, *(report.peer_id for report in reports))

    def note_generation_config(self, applied: AppliedConfig, now_s: float) -> None:
        if applied.options:
            self._note(f"the model's own generation config gave {', '.join(applied.options_text())}", now_s)
        if applied.not_honoured:
            lost = ", ".join(applied.not_honoured)
            self._note(f"the model's own {lost} cannot be honoured", now_s, is_alert=True)

    def note_chunk(self, chunk: Chunk, *, rounds: int, now_s: float) -> None:
        """Add text of the pass number `rounds`."""
        author = 0 if chunk.source in OWN_SOURCES.values() else self._number_of(chunk.source)
        # All drafts of the verifier have the same look in the text.
        is_copied = chunk.is_copied or chunk.source in (HOME_SOURCE, FORCED_SOURCE)
        if chunk.text:
            last = self._text[-1] if self._text else TextRun("", author, is_copied)
            goes_on = (last.author, last.is_copied) == (author, is_copied)
            before = self._text.pop().text if self._text and goes_on else ""
            self._text.append(TextRun(before + chunk.text, author, is_copied))
        tokens = len(chunk.token_ids)
        self.tokens += tokens
        self._origins.note(chunk.source, is_copied=chunk.is_copied, tokens=tokens)
        if rounds != self._last_round and tokens:
            self._passes.append(0)
            self._last_round = rounds
        if (author or is_copied) and self._passes:
            self._passes[-1] += tokens
        if tokens and self._first_s is None:
            self._first_s = now_s - self._began_s
            self._note("the first token came", now_s)
        self.state = RequestState.WRITING

    def note_progress(self, progress: Progress, now_s: float) -> None:
        """Note the progress; to be called several times a second."""
        before, self.progress = self.progress, progress
        # New are lost and found verifiers and decisions about drafters.
        for tried in progress.tried[len(before.tried) if before else 0 :]:
            peer_id, _, reason = tried.partition(" ")
            self._note(f"verifier {short_name(peer_id)} {reason}", now_s, is_alert=True)
        for peer_id in progress.serving:
            if before is None or peer_id not in before.serving:
                self._note(f"verifier {short_name(peer_id)} serves it from token {self.tokens}", now_s)
        news = min(progress.decisions - (before.decisions if before else 0), len(progress.why))
        for reason in progress.why[len(progress.why) - news :]:
            self._note(reason, now_s)
        self._seconds = now_s - self._began_s
        self._speeds.note(self.tokens, now_s)
        counts = {"tokens": self.tokens}
        for origin in self._origins.own():
            counts[origin.name] = origin.tokens
        for report in progress.drafters:
            counts[f"drafted by {report.peer_id}"] = report.drafted
            counts[f"accepted from {report.peer_id}"] = report.accepted
        for name, count in counts.items():
            self._rates[name].note(count, now_s)
        self._verifiers += [peer_id for peer_id in progress.serving if peer_id not in self._verifiers]

    def _note(self, text: str, now_s: float, *, is_alert: bool = False) -> None:
        self._timeline.append(Moment(now_s - self._began_s, text, is_alert))

    def end(self, state: RequestState, now_s: float, *, error: str = "", account: Generation | None = None) -> None:
        """End the request; the verifier's `account` is None if it never began."""
        self.state = state
        self.error = error
        self._account = account
        self._seconds = now_s - self._began_s
        self._note(f"{state.word}: {error}" if error else state.word, now_s, is_alert=bool(error))

    def view(self) -> RequestView:
        progress = self.progress
        serving = progress.serving if progress and not self.state.is_over else ()
        return RequestView(
            **asdict(self.description),
            number=self.number,
            seed=self.seed,
            state=self.state,
            error=self.error,
            seconds=self._seconds,
            first_s=self._first_s,
            text=tuple(self._text),
            tokens=self.tokens,
            origins=self._origin_views(),
            rounds=progress.rounds if progress else 0,
            passes=tuple(self._passes),
            tokens_per_s=self._per_s("tokens", self.tokens),
            verifiers=serving or tuple(self._verifiers[-1:]),
            drafters=tuple(map(self._drafter, progress.drafters)) if progress else (),
            why=progress.why if progress else (),
            plain_per_s=1.0 / progress.plain_pass_s if progress and progress.plain_pass_s else None,
            is_plain_measured=progress is None or progress.has_plain_pass,
            speeds=self._speeds.speeds,
            timeline=tuple(self._timeline),
            account=self._account,
        )

    def _origin_views(self) -> tuple[OriginView, ...]:
        reports = self.progress.drafters if self.progress else ()
        origins = self._origins.origins({report.peer_id: report.domain for report in reports})
        return tuple(
            OriginView(
                **asdict(origin),
                author=0 if origin.is_own else self._number_of(origin.source),
                per_s=self._per_s(
                    origin.name if origin.is_own else f"accepted from {origin.source}", origin.tokens
                ),
            )
            for origin in origins
        )

    def _drafter(self, report: DrafterReport) -> DrafterView:
        return DrafterView(
            **asdict(report),
            author=self._number_of(report.peer_id),
            drafted_per_s=self._per_s(f"drafted by {report.peer_id}", report.drafted),
            accepted_per_s=self._per_s(f"accepted from {report.peer_id}", report.accepted),
        )

    def _per_s(self, name: str, count: int) -> float:
        """Return the present rate of a count, or that of the whole request once it is over."""
        if not self.state.is_over:
            return self._rates[name].per_s
        return count / self._seconds if self._seconds > 0 else 0.0
