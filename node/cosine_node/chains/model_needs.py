"""The memory that a model in parts needs, by its configuration alone."""

from pathlib import Path
from typing import Any

from cosine_node.chains.planning import ModelNeeds
from cosine_node.engine.pool_size import AUTO


def model_needs(model: str, dtype: str, pool_tokens: int) -> tuple[ModelNeeds, str]:
    """The sizes of a model with a cache of `pool_tokens`, and its numerics. Raises `UsageError`."""
    from cosine_node import zoo
    from cosine_node.engine.torch.loading import check_options, read_config, resolve_device, resolve_dtype
    from cosine_node.engine.torch.support import numerics_of, refuse_by_config
    from cosine_node.gguf.file import GgufFile
    from cosine_node.gguf.unfolding import unfold
    from cosine_node.stages.opening import part_sizes

    check_options(dtype=dtype, device="cpu", quantize=None)
    source = zoo.resolve(model)
    file = None
    if isinstance(source, Path) and source.is_file():
        file, source = GgufFile.open(source), unfold(source)
    config: Any = read_config(str(source))
    refuse_by_config(config)
    # A machine with a GPU would choose the data type of the published weights.
    kind = config.dtype if dtype == AUTO else resolve_dtype(dtype, device=resolve_device("cpu"), config=config)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    needs = ModelNeeds(
        sizes=part_sizes(config, dtype=kind, file=file),
        layer_token_bytes=2 * heads * width * kind.itemsize,
        activation_bytes=text.hidden_size * kind.itemsize,
        pool_tokens=pool_tokens,
    )
    return needs, numerics_of(kind, None if file is None else file.weights, None)
