"""Reads a QR code as a camera sees it in a terminal, by another library than the one that wrote it."""

from collections.abc import Iterable
from typing import Final

import numpy as np
import pytest

LIGHT: Final = {"█": (1, 1), "▀": (1, 0), "▄": (0, 1), " ": (0, 0)}
"""The upper and lower half of a character, in a terminal with light letters."""
PIXELS: Final = 4
"""The size of a module in the picture."""


def read_code(shown: Iterable[str]) -> str:
    """The text of the code among lines of a terminal; skips the test where the library is not installed."""
    zxingcpp = pytest.importorskip("zxingcpp")
    lines = [line for line in shown if "█" in line and not set(line) - LIGHT.keys()]
    rows = [half for line in lines for half in zip(*(LIGHT[character] for character in line), strict=True)]
    picture = np.kron(np.array(rows, np.uint8) * 255, np.ones((PIXELS, PIXELS), np.uint8))
    [found] = zxingcpp.read_barcodes(picture)
    return str(found.text)
