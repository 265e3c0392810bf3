"""Panes and pages, each a pure function from a snapshot and a width to text and rows for Rich."""
