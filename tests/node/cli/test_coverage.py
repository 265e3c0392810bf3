"""Coverage of layers as text."""

from typing import Any

from cosine_node.cli.status import SHOWN_KINDS, SHOWN_LAYERS, coverage_as_objects, coverage_lines, shortened
from cosine_protocol.records import NodeRecord, Role, StageOffer
from tests.cosine_p2p.samples import identity_of, record_of


def stage(number: int, first: int, end: int, *, layers: int = 24, **changes: Any) -> NodeRecord:
    offer = StageOffer(
        first_layer=first,
        end_layer=end,
        layers=layers,
        wide_tokens=64,
        wide_pass_us=9000,
        busy_permille=200,
        pool_tokens=4096,
    )
    return record_of(identity_of(number), now_s=1000.0, role=Role.STAGE, stage=offer, **changes)


def test_each_layer_has_a_bar_and_gaps_are_named() -> None:
    records = [stage(1, 0, 8), stage(2, 0, 12), record_of(identity_of(9), now_s=1000.0)]
    assert list(coverage_lines(records)) == [
        "layers in float32: 0 ▂▂▂▂▂▂▂▂▁▁▁▁×××××××××××× 24, each held by 0 to 2 stages",
        "Layers 12:24 of 24 are held by nobody. `cosine-node join --role stage` takes them.",
    ]
    assert list(coverage_lines([*records, stage(3, 8, 24), stage(4, 12, 24)])) == [
        "layers in float32: 0 ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂ 24, each held by 2 stages"
    ]
    assert list(coverage_lines([stage(1, 0, 2, layers=2)])) == ["layers in float32: 0 ▁▁ 2, each held by 1 stage"]
    assert not list(coverage_lines(records[2:]))


def test_targets_and_data_types_are_told_apart() -> None:
    records = [stage(1, 0, 4, layers=4), stage(2, 2, 4, layers=4, numerics="bfloat16")]
    first, gap, second = coverage_lines(records)
    assert first.startswith("layers of 01010101 in bfloat16: 0 ××▁▁ 4") and "0:2 of 4" in gap
    assert second.startswith("layers of 01010101 in float32: 0 ▁▁▁▁ 4")
    many = [stage(number, 0, 4, layers=4, numerics=f"type {number}") for number in range(1, 20)]
    assert len(list(coverage_lines(many))) == SHOWN_KINDS
    # Those with most stages come first.
    assert "float32" in next(coverage_lines([*many, stage(30, 0, 4, layers=4), stage(31, 0, 4, layers=4)]))
    objects = coverage_as_objects(records)
    assert [each["numerics"] for each in objects] == ["bfloat16", "float32"]
    assert objects[0]["holders"] == [0, 0, 1, 1] and objects[0]["target_digest"] == "01" * 32


def test_deep_models_fit_a_line_and_no_gap_is_hidden() -> None:
    counts = [1] * 100
    counts[77] = 0
    short = shortened(counts)
    assert len(short) == 50 <= SHOWN_LAYERS and short.count(0) == 1 and short[77 // 2] == 0
    assert shortened([1, 2, 3]) == [1, 2, 3]
