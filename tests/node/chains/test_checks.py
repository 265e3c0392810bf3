"""A head finds the stage that lies, whatever the lie, goes on without it, and rejects nobody else."""

from pathlib import Path
from typing import Final

import pytest
import torch

from cosine_node.chains.known_stages import CLEARLY
from cosine_node.stages.host import StageModel
from tests.engine.staged import ranges
from tests.node.chains.checked_heads import TYPES, head_of, load
from tests.node.chains.liars import Lie
from tests.scenes import in_real_time
from tests.thoroughness import quick_first

PARTS: Final = ranges(1, 3, 4)


@pytest.fixture(scope="module")
def thrice(folder: Path) -> list[StageModel]:
    return load(folder, PARTS, holders=3, dtype=torch.float32)


@pytest.fixture(scope="module")
@in_real_time
async def expected(thrice: list[StageModel]) -> list[int]:
    """The text where nobody lies."""
    async with head_of(thrice) as honest:
        return await honest.checked()


OF_THE_FIRST: Final = 0
OF_THE_MIDDLE: Final = 1
OF_THE_LAST: Final = 2
CASES: Final = [
    (lie, liar)
    for liar in (OF_THE_FIRST, OF_THE_MIDDLE, OF_THE_LAST)
    for lie in (Lie.NONSENSE, Lie.NOISE, Lie.ONLY_WRITING, Lie.OTHER_CLAIM)
    # The last stage sends nothing but choices.
    if not (liar == OF_THE_LAST and lie in (Lie.NOISE, Lie.OTHER_CLAIM))
]


@pytest.mark.parametrize("case", quick_first(CASES, 2), ids=str)
@in_real_time
async def test_the_first_lie_is_found_and_nobody_else_suffers(
    thrice: list[StageModel], expected: list[int], case: tuple[Lie, int]
) -> None:
    lie, liar = case
    async with head_of(thrice, {liar: lie}) as head:
        await head.checked()
        assert head.rejected == {f"stage {liar}"}
        assert head.links.lost.is_set()
        # The next text is written by others, and right.
        assert await head.checked() == expected
        assert f"stage {liar}" not in head.used
        assert head.rejected == {f"stage {liar}"} and not head.disputes.open(head.now_s)


@in_real_time
async def test_stages_that_are_honest_are_found_right_and_ever_less_often_checked(thrice: list[StageModel]) -> None:
    async with head_of(thrice) as head:
        for number in range(8):
            await head.checked(tuple(range(3 + number, 20 + number)))
        assert not head.rejected and not head.disputes.open(head.now_s)
        checks = [head.disputes.standings.checks(each, now_s=head.now_s) for each in head.used]
        assert min(checks) >= CLEARLY
        assert head.disputes.check_chance(head.used, now_s=head.now_s) < 1
        assert head.checks.why_not_judge is None


@pytest.mark.parametrize("lie", quick_first([Lie.BLAMES, Lie.HIDDEN]))
@in_real_time
async def test_who_blames_a_neighbour_is_found_once_it_has_blamed_two(
    thrice: list[StageModel], expected: list[int], lie: Lie
) -> None:
    async with head_of(thrice, {OF_THE_MIDDLE: lie}) as head:
        await head.checked()
        # Of the two one lies, and nobody can tell which: they are not put side by side again.
        [dispute] = head.disputes.open(head.now_s)
        assert dispute.is_link and "stage 1" in dispute.members and not head.rejected
        texts = []
        while not head.rejected:
            texts.append(await head.checked())
            assert len(texts) < 40
        assert head.rejected == {"stage 1"} and not head.disputes.open(head.now_s)
        assert sum(text != expected for text in texts) <= 1 and await head.checked() == expected


@pytest.mark.parametrize("lie", quick_first([Lie.NONSENSE, Lie.OTHER_CLAIM]))
@in_real_time
async def test_who_lies_about_others_texts_is_found_too(
    thrice: list[StageModel], expected: list[int], lie: Lie
) -> None:
    # Its words say that it is slow: it only computes what others have written.
    async with head_of(thrice, {7: lie}) as head:
        for _ in range(40):
            assert await head.checked() == expected
            if head.rejected:
                break
        assert head.rejected == {"stage 7"} and not head.disputes.open(head.now_s)
        assert not head.links.lost.is_set()


@in_real_time
async def test_a_lie_in_a_prefix_that_others_go_on_from_is_its_own(thrice: list[StageModel]) -> None:
    """What a stage got wrong is in the keys and values of those behind it, who are honest."""
    prompt = tuple(range(3, 3 + 40))
    async with head_of(thrice, {OF_THE_FIRST: Lie.NONSENSE}) as head:
        await head.open()
        chance, head.checks._chance = head.checks._chance, lambda: 1.0
        await head.checked(prompt)
        liar = head.stages.hosts[OF_THE_FIRST]
        # It says nothing wrong any more, but what is cached was computed with what it said.
        for chain in head.stages.services[OF_THE_FIRST]._chains.values():
            chain.hosted._lie = None  # type: ignore[attr-defined]  # a `LyingChain`
        assert liar.chains == 1
        head.checks._chance = chance
        await head.checked((*prompt, 9, 8, 7))
        assert head.rejected == {"stage 0"} and not head.disputes.open(head.now_s)


@in_real_time
async def test_an_auditor_does_not_judge_over_stages_that_were_never_found_right(thrice: list[StageModel]) -> None:
    async with head_of(thrice) as head:
        await head.open()
        assert head.checks.why_not_judge == "not all stages were found right yet"
        await head.checked()
        assert head.checks.why_not_judge is None
    async with head_of(thrice, {OF_THE_MIDDLE: Lie.HIDDEN}) as head:
        await head.checked()
        assert head.checks.why_not_judge == "stages contradict each other"


@pytest.mark.parametrize("numerics", quick_first(["bfloat16", "float16"], 0))
@in_real_time
async def test_in_sixteen_bits_liars_are_found_and_nobody_else(folder: Path, numerics: str) -> None:
    models = load(folder, PARTS, holders=3, dtype=TYPES[numerics])
    async with head_of(models) as head:
        for number in range(6):
            await head.checked(tuple(range(3 + number, 30 + number)))
        assert not head.rejected and not head.disputes.open(head.now_s)
    for lie in (Lie.NONSENSE, Lie.NOISE, Lie.ONLY_WRITING, Lie.OTHER_CLAIM):
        async with head_of(models, {OF_THE_MIDDLE: lie}) as head:
            await head.checked()
            assert head.rejected == {"stage 1"} and not head.disputes.open(head.now_s)


@in_real_time
async def test_who_does_not_say_what_it_computes_is_left_for_others(
    thrice: list[StageModel], expected: list[int]
) -> None:
    async with head_of(thrice, {OF_THE_MIDDLE: Lie.NO_WORD}) as head:
        await head.checked()
        assert head.links.suspects == ("stage 1",)
        assert await head.checked() == expected
        assert not head.rejected
