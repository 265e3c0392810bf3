"""The panes and pages of the screen, each drawn by one pure function.

In comes a snapshot, and the width where needed; out goes text for Rich, line by line with keys for lists.
"""
