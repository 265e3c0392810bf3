"""The training scripts are not part of the installed package: find them in the repository."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
