"""`generate` of Hugging Face transformers on a client of a swarm."""

import logging
import reprlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from cosine_p2p.blocking import Client
from cosine_p2p.huggingface.arrays import Rows, for_streamer, like, rows_of, token_for_streamer
from cosine_p2p.huggingface.options import BatchOptions, options_of, parse_options
from cosine_p2p.huggingface.pipelines import PipelineModel
from cosine_p2p.request.arguments import read_argument, text, with_methods
from cosine_p2p.request.options import NONE, choice_seed
from cosine_p2p.request.results import Generation
from cosine_protocol.errors import UsageError

logger = logging.getLogger(__name__)


class Streamer(Protocol):
    """A streamer of transformers."""

    def put(self, value: Any) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GenerateOutput:
    """The `sequences` that `generate` returns otherwise, with a report of each row."""

    sequences: Any
    generations: tuple[Generation, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    given: tuple[int, ...]
    prompt: tuple[int, ...]
    options: dict[str, Any]


class SwarmModelForCausalLM(PipelineModel):
    """A model that only supports `generate`. Use `with`, or `close` it."""

    def __init__(self, client: Client) -> None:
        """`close` closes the client. Raises `GenerationFailed` if no verifier serves its target."""
        if not isinstance(client, Client):
            raise UsageError(
                f"The model needs a Client, not {reprlib.repr(client)}; `from_pretrained` makes one from a name."
            )
        self._client = client
        best = client.find_verifiers()[0]
        self.eos_token_ids = best.eos
        published = best.generation_defaults if client.takes_generation_config else None
        if published is not None and published.not_honoured:
            logger.warning(
                "The generation config of %s sets %s, which a swarm cannot honour: texts are not those of its own "
                "generate().",
                best.target,
                ", ".join(published.not_honoured),
            )
        super().__init__(best, own={} if published is None else options_of(published))

    @classmethod
    def from_pretrained(
        cls, target: str, *, initial_peers: Sequence[str] = (), dtype: Any = None, **options: Any
    ) -> "SwarmModelForCausalLM":
        """Join a swarm that serves a target: a zoo name, a folder, or a Hugging Face id, `[@DIGEST]`.

        `dtype`, "float32" or `torch.float32`, selects verifiers of that type; further options are `Client`'s.
        Raises as `Client` does, and `GenerationFailed` if no verifier serves the target.
        """
        target = read_argument("target", target, text("the name or folder of a target"))
        # As in `str(torch.float32)`.
        numerics = None if dtype is None else str(dtype).removeprefix("torch.")
        client = Client(initial_peers, target=target, dtype=None if numerics == "auto" else numerics, **options)
        try:
            return cls(client)
        except BaseException:
            client.close()
            raise

    def __enter__(self) -> "SwarmModelForCausalLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the network."""
        self._client.close()

    def generate(
        self,
        input_ids: Any = None,
        generation_config: Any = None,
        *,
        inputs: Any = None,
        attention_mask: Any = None,
        streamer: Streamer | None = None,
        **options: Any,
    ) -> Any:
        """Return prompts with outputs, [batch * num_return_sequences, prompt + new], padded on the right.

        Prompts are a [batch, prompt] block of token ids, padded on the left: a list, a numpy array or a torch
        tensor; the result has the same type. Tokens with a 0 in `attention_mask` (default: padding) are ignored.
        `generation_config` is any object with the attributes of transformers' class; it has precedence over the
        model's, and keyword arguments over both. With `seed` sequence i uses `choice_seed(seed, i)`.
        `num_assistant_tokens=0` disables drafters; other numbers are ignored. A streamer gets the prompt and then
        each token, in the caller's thread.

        Raises `UsageError` for unsupported options, and `GenerationFailed`.
        """
        wanted = parse_options(options, generation_config, self.generation_config)
        if streamer is not None:
            read_argument("streamer", streamer, with_methods("put", "end"))
        block = inputs if input_ids is None else input_ids
        rows = self._rows(block, attention_mask, wanted)
        done = self._generate_all(rows) if streamer is None else self._stream(rows, streamer, block)
        sequences = like(block, self._padded(rows, done, wanted))
        return GenerateOutput(sequences, tuple(done)) if wanted.returns_dict else sequences

    def _rows(self, block: Any, attention_mask: Any, wanted: BatchOptions) -> list[_Row]:
        if block is None:
            raise UsageError("There is no prompt, or an empty one; give input_ids with at least one token.")
        given = rows_of(block, "input_ids")
        if attention_mask is None:
            # Padding is masked only if its token could not be a real one.
            pad, eos = wanted.pad_token_id, self._eos(wanted)
            mask: Rows = tuple(tuple(int(pad in eos or token != pad) for token in row) for row in given)
        else:
            mask = rows_of(attention_mask, "attention_mask")
        if [len(row) for row in mask] != [len(row) for row in given]:
            raise UsageError("attention_mask must have the shape of input_ids.")
        options = {
            **wanted.for_client,
            "generation_config": NONE,
            "max_new_tokens": wanted.new_tokens(len(given[0])),
            "eos": wanted.eos,
        }
        rows: list[_Row] = []
        for row, seen in zip(given, mask, strict=True):
            prompt = tuple(token for token, is_seen in zip(row, seen, strict=True) if is_seen)
            if not prompt:
                raise UsageError("A prompt has no token that is not padding; give at least one.")
            for _ in range(wanted.num_return_sequences):
                seed = None if wanted.seed is None else choice_seed(wanted.seed, len(rows))
                rows.append(_Row(row, prompt, {**options, "seed": seed}))
        return rows

    def _eos(self, wanted: BatchOptions) -> tuple[int, ...]:
        return self.eos_token_ids if wanted.eos is None else wanted.eos

    def _generate_all(self, rows: Sequence[_Row]) -> list[Generation]:
        futures = [self._client.submit(row.prompt, **row.options) for row in rows]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _stream(self, rows: Sequence[_Row], streamer: Streamer, block: Any) -> list[Generation]:
        if len(rows) > 1:
            raise UsageError("A streamer takes one sequence; give one prompt, and no num_return_sequences.")
        shown = for_streamer(block)
        try:
            streamer.put(shown)
            with closing(self._client.stream(rows[0].prompt, **rows[0].options)) as chunks:
                while True:
                    for token in next(chunks).token_ids:
                        streamer.put(token_for_streamer(shown, token))
        except StopIteration as end:
            return [end.value]
        finally:
            # A reader in another thread would wait forever.
            streamer.end()

    def _padded(
        self, rows: Sequence[_Row], done: Sequence[Generation], wanted: BatchOptions
    ) -> list[tuple[int, ...]]:
        longest = max(generation.usage.completion_tokens for generation in done)
        missing = [longest - generation.usage.completion_tokens for generation in done]
        pad = wanted.pad_token_id if wanted.pad_token_id is not None else next(iter(self._eos(wanted)), None)
        if pad is None and any(missing):
            raise UsageError("The outputs differ in length and the target has no EOS token; give a pad_token_id.")
        return [
            (*row.given, *generation.token_ids, *[pad or 0] * lack)
            for row, generation, lack in zip(rows, done, missing, strict=True)
        ]
