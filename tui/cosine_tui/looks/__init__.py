"""Themes, tones, names and numbers: values and untrusted text become text that a terminal can show."""
