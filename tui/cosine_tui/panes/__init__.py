"""What each pane says, as lines of text: pure functions of a picture and a width."""
