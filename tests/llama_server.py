"""llama.cpp's server as a process, since it may be killed."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

PROGRAM: Final = """
import json, sys, threading, xllamacpp
given = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path, params.n_parallel, params.n_ctx = given["path"], given["requests"], 2048
params.port, params.use_jinja = given["port"] or params.port, True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
if given["is_float32"]:
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(params)
print("AT", server.listening_address, flush=True)
threading.Event().wait()
"""


class LlamaServer:
    """Serves a GGUF file at `url`, at a `port` if one is given, to so many `requests` at once."""

    def __init__(self, file: Path, *, port: int = 0, requests: int = 2, is_float32: bool = False) -> None:
        given = {"path": str(file), "port": port, "requests": requests, "is_float32": is_float32}
        command = (sys.executable, "-c", PROGRAM, json.dumps(given))
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            assert self._process.stdout is not None
            self.url = next((line.split()[1] for line in self._process.stdout if line.startswith("AT ")), "")
            if not self.url:
                log.seek(0)
                raise AssertionError(log.read().decode(errors="replace"))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
