"""Serves a scene until interrupted, to look at the page: `python -m tests.node.page.serve`."""

import time

from tests.node.gateway.gateways import served
from tests.node.page.scene import scene

if __name__ == "__main__":
    with served(swarm_of=scene(stages=((0, 10), (8, 18), (22, 28)))) as gateway:
        print(gateway.url, flush=True)  # noqa: T201 - what it is started for
        while True:
            time.sleep(1.0)
