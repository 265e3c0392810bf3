"""`cosine-node convert`: a model as a GGUF file."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from cosine_node.cli.options import AsJson
from cosine_protocol.errors import UsageError

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="zoo:NAME, a folder, or a Hugging Face id.")]
Out = Annotated[Path, typer.Argument(metavar="FILE", help="The GGUF file to write.")]
Weights = Annotated[str, typer.Option(help="F32, F16, BF16, Q8_0, Q5_0, Q5_1, Q4_0 or Q4_1.")]


def convert(source: Source, out: Out, weights: Weights = "Q8_0", as_json: AsJson = False) -> None:
    """Write a model of the llama kind as a GGUF file, which llama.cpp and `join` take."""
    from cosine_node.gguf.file import GgufFile
    from cosine_node.gguf.writing import write_gguf
    from cosine_node.model import fetch_folder

    if not out.parent.is_dir():
        raise UsageError(f"There is no folder {out.parent} to write {out.name} into.")
    write_gguf(fetch_folder(source), out, weights=weights.upper(), name=source.removeprefix("zoo:"))
    written = GgufFile.open(out)
    size_bytes = out.stat().st_size
    if as_json:
        fields = {"file": str(out), "weights": written.weights, "bytes": size_bytes}
        sys.stdout.write(json.dumps({**fields, "content_digest": written.digest.hex()}) + "\n")
    else:
        sys.stdout.write(f"{out}: {size_bytes / 1e6:.1f} MB, weights in {written.weights}\n")
