"""Panes and pages, each one pure function: a snapshot and a width come in, text and rows for Rich go out."""
