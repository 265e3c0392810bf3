"""A running swarm is measured in turns, and the findings follow from the rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.experiments.here import HERE, HereOptions, findings_of, measure, questions_of, sentences
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.demo.race import RacedWay


def row(ratio: float, *, rtt_ms: float = 0.0, is_identical: bool = True) -> dict[str, Any]:
    times = {RacedWay.PLAIN.value: 1.0, RacedWay.COPYING.value: 1.0, RacedWay.COSINE.value: ratio}
    return {
        "emulated_rtt_ms": rtt_ms,
        "temperature": 0.0,
        "ms_per_token": {way: 10 / times_plain for way, times_plain in times.items()},
        "times_plain": times,
        "is_identical": is_identical,
        "tokens_by_origin": {way: {"copied": 2, "target alone": 8} for way in times},
    }


def test_every_prompt_is_generated_in_every_way_with_equal_texts(tmp_path: Path) -> None:
    lines = tmp_path / "prompts"
    lines.write_text("ab\n\ncd\nef\n", "utf-8")
    options = replace(HereOptions.quick(), prompts_from=lines, prompts=2, repeats=2)

    async def measured() -> list[dict[str, Any]]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier()
            await swarm.drafter()
            rows = measure(await swarm.client(), HERE, questions_of(options), options, say=lambda _: None)
            return [found async for found in rows]

    rows = run_virtual(measured())
    assert [found["prompt"] for found in rows] == [0, 1]
    assert all(found["is_identical"] for found in rows)
    # A scripted drafter is right seven times of ten and costs nothing here but its own time.
    assert all(found["times_plain"]["cosine"] > 1.0 for found in rows)
    for found in rows:
        for tokens in found["tokens_by_origin"].values():
            assert sum(tokens.values()) == options.tokens * options.repeats


def test_the_worst_ten_prompts_in_a_row_and_texts_that_differ_are_told() -> None:
    rows = [row(2.0) for _ in range(10)] + [row(0.9) for _ in range(10)]
    found = findings_of([*rows, *[row(3.0, is_identical=False)] * 15], 0)
    [_, ours] = found["ways"]
    assert (ours["times_plain"], ours["worst_group"]) == (2.0, 0.9)
    low, high = ours["interval"]
    assert 0.9 <= low <= 2.0 <= high <= 3.0
    *_, told, differ = sentences(found)
    assert "Temperature 0, cosine: 2.00 times plain decoding" in told
    assert differ == "15 texts differ between the ways."
