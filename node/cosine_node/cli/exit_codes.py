"""Exit codes of the commands."""

from typing import Final

FAILURE_EXIT: Final = 1
"""The command could not do what was asked, or what it found is bad."""

USAGE_EXIT: Final = 2
"""Bad usage, the code of click: the same command fails again, so a systemd unit does not restart after it."""

INTERRUPT_EXIT: Final = 130
"""128 + SIGINT, as shells report a command that was interrupted."""
