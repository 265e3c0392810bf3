"""Prometheus metrics of generations, with vLLM's names."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from cosine_p2p.request.results import Generation

ABANDONED: Final = "abort"
"""vLLM's `finished_reason` of aborted requests."""

# Bounds of histograms, in seconds: from an embedded model on a local network to a large one across an ocean.
FIRST_TOKEN_S: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
OUTPUT_TOKEN_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
LATENCY_S: Final = (0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)


class GenerationMetrics:
    """An `Observer` that counts a client's generations in a registry."""

    def __init__(self, registry: CollectorRegistry, *, model_name: str) -> None:
        self._model = model_name

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"cosine:{name}", text, ("model_name", *labels), registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"cosine:{name}", text, ("model_name",), registry=registry, buckets=buckets)

        self._prompt = counter("prompt_tokens", "Prompt tokens processed.")
        self._output = counter("generation_tokens", "Tokens generated.")
        self._origins = counter("generation_tokens_by_origin", "Tokens generated, by origin.", "origin")
        self._drafted = counter("spec_decode_num_draft_tokens", "Tokens drafted.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Drafted tokens that the target accepted.")
        self._rounds = counter("spec_decode_num_rounds", "Passes of verifiers.")
        self._ended = counter("request_success", "Generations that ended, by reason.", "finished_reason")
        self._first = histogram("time_to_first_token_seconds", "Time to the first token.", FIRST_TOKEN_S)
        self._each = histogram("time_per_output_token_seconds", "Time per further token.", OUTPUT_TOKEN_S)
        self._whole = histogram("e2e_request_latency_seconds", "Time of a whole generation.", LATENCY_S)

    def observe(self, done: Generation) -> None:
        """Count a generation that has finished."""
        self._count(done, done.finish_reason)
        self._whole.labels(self._model).observe(done.seconds)
        if done.usage.completion_tokens:
            self._first.labels(self._model).observe(done.time_to_first_token_s)
        if done.usage.completion_tokens > 1:
            per_token_s = (done.seconds - done.time_to_first_token_s) / (done.usage.completion_tokens - 1)
            self._each.labels(self._model).observe(per_token_s)

    def observe_abandoned(self, part: Generation) -> None:
        """Count the part of a generation that failed or was cancelled."""
        self._count(part, ABANDONED)

    def _count(self, generation: Generation, reason: str) -> None:
        for counter, amount in (
            (self._prompt, generation.usage.prompt_tokens),
            (self._output, generation.usage.completion_tokens),
            (self._drafted, generation.swarm.drafted),
            (self._accepted, generation.swarm.accepted),
            (self._rounds, generation.swarm.rounds),
        ):
            counter.labels(self._model).inc(amount)
        for origin in generation.swarm.origins:
            # Drafters choose the names of their domains, so these would make an unbounded number of labels.
            name = "copied" if origin.is_copied else origin.source if origin.is_own else "drafter"
            self._origins.labels(self._model, name).inc(origin.tokens)
        self._ended.labels(self._model, reason).inc()
