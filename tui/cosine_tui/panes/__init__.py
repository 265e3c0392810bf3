"""What each pane says, as lines of text: pure functions of a snapshot and a width."""
