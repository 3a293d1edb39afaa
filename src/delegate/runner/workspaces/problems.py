from __future__ import annotations


class SetupProblem(Exception):
    """The work cannot begin; the text is a sentence for the user."""
