"""The panes and pages of the screen, each drawn by one pure function.

In comes a snapshot, and the width where that decides what is shown; out goes text for Rich to lay out. The lists
give it line by line, with the key of what a line stands for.
"""
