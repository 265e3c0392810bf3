"""The text of each pane as lines: pure functions of a snapshot and a width."""
