"""`python -m cosine_tui`."""

from cosine_tui.cli import main

main()
