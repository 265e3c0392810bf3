"""A library imported in part is whole to a program that uses it beside this one."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.thoroughness import quick_first

USES = {
    "hivemind": """
import cosine_p2p.transport.full.library, hivemind
from hivemind.averaging import DecentralizedAverager
assert hivemind.DHT and hivemind.Optimizer and hivemind.__version__
""",
    "libp2p": """
import cosine_p2p.transport.light.library
from libp2p.kad_dht.kad_dht import KadDHT
import libp2p
from libp2p.transport.quic.stream import QUICStream
from libp2p.transport.quic.connection import QUICConnection
assert QUICStream.write and QUICConnection.open_stream
assert libp2p.new_host and libp2p.peer.id.ID and libp2p.__version__
""",
}


@pytest.mark.parametrize("library", quick_first(["libp2p", "hivemind"]))
def test_a_programs_own_use_of_a_library_finds_everything(library: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"needs {library}")
    done = subprocess.run([sys.executable, "-c", USES[library]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
