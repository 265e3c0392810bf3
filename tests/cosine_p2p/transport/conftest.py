"""Without the GMP headers py-libp2p cannot be built, and everything but the light client is tested."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("libp2p") else ["light"]
