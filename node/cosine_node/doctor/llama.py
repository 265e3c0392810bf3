"""llama.cpp as an engine: whether it is there, knows the device, and what a file takes of the memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cosine_node import zoo
from cosine_node.doctor import model_files
from cosine_node.doctor.finding import Finding, failure, fine
from cosine_node.doctor.machine import EngineFacts
from cosine_node.doctor.model_files import ModelFiles
from cosine_node.engine.engine_kind import EngineChoice, EngineKind, check_engine_options
from cosine_node.free_memory import free_memory_bytes
from cosine_node.pool_size import TokenBytes
from cosine_protocol.errors import UsageError

FIX: Final = "Choose a smaller --model or one in fewer bits, or free memory."


def look_at_llama(model: ModelFiles, options: EngineChoice, *, base_bytes: int) -> Sequence[Finding]:
    """Judge a model that llama.cpp is to run on this machine; nothing to judge for others. Reads no weights.

    `base_bytes` is what Python and its libraries take, 0 if not known.
    """
    try:
        resolved = zoo.resolve(model.source)
    except UsageError:
        return []
    if options.kind_for(resolved) is not EngineKind.LLAMA:
        return []
    what = f"llama.cpp for {model.source}"
    try:
        check_engine_options(options, resolved)
    except UsageError as error:
        return [failure(what, str(error), "Install what it names, or leave the option out.")]
    # They need numpy, which a client has not.
    from cosine_node.engine.llama_library import PACKAGE, llama_library
    from cosine_node.engine.llama_loading import find_device
    from cosine_node.engine.llama_model import token_bytes_of
    from cosine_node.gguf.file import GgufFile

    library = llama_library()
    device = find_device(library, options.device)
    free_bytes = (free_memory_bytes() or 0) if device is None else library.free_bytes(device)
    here = fine(what, f"the package {PACKAGE} has it, with the devices {', '.join(('cpu', *library.devices()))}")
    try:
        facts = EngineFacts()
        if isinstance(resolved, Path) and model.is_usable:
            file = GgufFile.open(resolved)
            facts = EngineFacts(token=TokenBytes(token_bytes_of(file)), context_tokens=file.context_tokens)
        memory = model_files.estimate_memory(
            model,
            dtype=model_files.AS_STORED,
            quantize=None,
            on_cpu=device is None,
            base_bytes=base_bytes if device is None else 0,
            free_bytes=free_bytes,
            pool_size=options.pool_size,
            engine=facts,
        )
    except UsageError as error:
        return [here, failure(f"memory for {model.source}", str(error), FIX)]
    where = "this machine" if device is None else options.device
    return [here, model_files.judge_memory(model.source, memory, free_bytes, where=where)]
