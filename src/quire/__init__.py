"""Quire: a context engine."""

__version__ = "0.1.0"
