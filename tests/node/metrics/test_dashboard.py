"""The dashboard queries existing metrics, and shows all of them."""

import json
import re
from pathlib import Path
from typing import Any

from tests.node.metrics.exported import exported, series_names

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "docs" / "grafana" / "cosine.json").read_text("utf-8")
)
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
    *(each["definition"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"),
]
NAME = re.compile(r"(?:cosine:|libp2p_)\w+")
BRACES = re.compile(r"\{[^}]*\}")


def test_every_metric_it_names_is_exported() -> None:
    named = {name for query in QUERIES for name in NAME.findall(query)}
    assert named - series_names() == set()


def test_every_metric_of_a_node_and_a_generation_is_somewhere_on_it() -> None:
    named = {name for query in QUERIES for name in NAME.findall(query)}
    ends = ("", "_bucket", "_sum", "_count")
    assert {each.name for each in exported() if not any(each.name + end in named for end in ends)} == set()


def test_labels_it_selects_and_sums_by_exist() -> None:
    known = {"role", "model_name", "peer_id", "le"}.union(*(each.labels for each in exported()))
    used = {
        label.strip()
        for query in QUERIES
        for part in re.findall(r"by \(([\w, ]+)\)", query)
        for label in part.split(",")
    }
    used |= {label for query in QUERIES for part in BRACES.findall(query) for label in re.findall(r"(\w+)=", part)}
    assert used <= known
