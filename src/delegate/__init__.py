"""Delegate an issue, come back to a pull request."""

__version__ = "0.1.0"
