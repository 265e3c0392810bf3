"""In come a program's values, checked before anybody is asked; out go typed options, defaults and results."""
