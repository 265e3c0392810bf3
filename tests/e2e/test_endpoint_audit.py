"""`cosine audit endpoint`: a gateway is judged by its answers, in a report that others check."""

import json
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.conftest import Swarm
from tests.e2e.nodes import Node, run

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

KEY: Final = "sesame"
JUDGING: Final = ("--model", "zoo:target", "--dtype", "float32", "--json")


def test_a_gateway_is_tried_and_its_report_is_checked_by_others(swarm: Swarm, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    serve = ("serve", "--port", "0", "--api-key", KEY, *swarm.peers)
    with closing(Node.start("gateway", serve, tmp_path)) as gateway:
        asking = (
            "audit",
            "endpoint",
            f"{gateway.wait_ready().ready['url']}/v1",
            "--questions",
            "32",
            "--seed",
            "1",
        )
        refused = run(*asking, *JUDGING, timeout_s=120)
        assert (refused.returncode, "refuses the key" in refused.stderr) == (2, True)
        done = run(*asking, *JUDGING, "--out", str(file), environment={"COSINE_ENDPOINT_KEY": KEY}, timeout_s=240)
    told = json.loads(done.stdout)
    assert (done.returncode, told["verdict"], next(iter(told["departures"].values()))) == (0, "this model", 0)
    assert told["log_probabilities"]["fits"][0].startswith("float32")
    assert KEY not in file.read_text()

    assert run("audit", str(file)).stdout.splitlines()[0].endswith(": this model.")
    report = json.loads(file.read_text())
    file.write_text(json.dumps(report | {"endpoint_report": report["endpoint_report"].replace("this", "that", 1)}))
    forged = run("audit", str(file))
    assert (forged.returncode, "This report proves nothing" in forged.stderr) == (2, True)
