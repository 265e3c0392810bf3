"""Themes, tones, names and numbers: in come values and strangers' text, out goes text that a terminal can show."""
