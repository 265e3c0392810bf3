"""The version of the project: the build reads it here."""

__version__ = "0.1.0"
