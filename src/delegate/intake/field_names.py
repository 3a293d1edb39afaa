"""Adds the position in a larger request to the field names in errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delegate.errors import PreferenceConflict, Refused


@contextmanager
def prefix_fields(prefix: str) -> Iterator[None]:
    """Raise errors with the field's full path in the request."""
    try:
        yield
    except PreferenceConflict as error:
        raise PreferenceConflict([f"{prefix}: {problem}" for problem in error.problems]) from error
    except Refused as error:
        if error.field is None:
            raise
        raise type(error)(**{**error.data, "field": f"{prefix}.{error.field}"}) from error
