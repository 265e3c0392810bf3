"""Requests: a program's values are checked and become typed options; results are values."""
