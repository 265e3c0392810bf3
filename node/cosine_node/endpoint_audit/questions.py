"""Short questions, drawn by a seed, so that no endpoint can know the answers beforehand."""

import random
from typing import Final

TEMPLATES: Final = (
    "Explain what {0} is for, in one sentence.",
    "Describe {0} to a child.",
    "What is the difference between {0} and {1}?",
    "What do {0} and {1} have in common?",
    "Write the first sentence of a story about {0} and {1}.",
    "Write a short poem about {0}.",
    "How would you repair {0}?",
    "Who needs {0}, and why?",
    "Which is older, {0} or {1}?",
    "Write a Python function that counts the uses of {0}.",
    "Translate into French: she sold {0} and bought {1}.",
    "What would happen in a world without {0}?",
    "Give me three tips for choosing {0}.",
    "Ask me a riddle whose answer is {0}.",
    "A shop sells {0} for $14 and {1} for half as much. What do both cost?",
    "Write a headline about {0} and {1}.",
)
SUBJECTS: Final = """\
a bicycle, a bridge, a candle, a compass, a garden, a violin, a ladder, a lighthouse, a lemon, a mirror, a nest,
a pencil, a pillow, a river boat, a saddle, a sewing machine, a snow shovel, a sundial, a teapot, a telescope,
a tent, a wheel, a windmill, an anchor, an apple, an atlas, an elevator, an engine, an island, an oven, an umbrella,
bread, cheese, cotton, glass, gold, honey, ice, ink, iron, milk, paper, rice, salt, silk, soap, steam, wool\
""".replace("\n", " ").split(", ")


def draw_questions(count: int, seed: int) -> tuple[str, ...]:
    """Draw different questions, the same for the same seed; the most are some 700."""
    drawn = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        # All templates in turn: sets differ only in their subjects.
        template = TEMPLATES[len(found) % len(TEMPLATES)]
        found[template.format(*drawn.sample(SUBJECTS, 2))] = None
    return tuple(found)
