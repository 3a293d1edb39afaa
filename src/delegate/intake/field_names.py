"""Where in a request of many parts something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delegate.errors import PreferenceConflict, Refused


@contextmanager
def prefix_fields(prefix: str) -> Iterator[None]:
    """Refusals name the field as it stands in the whole request."""
    try:
        yield
    except PreferenceConflict as error:
        raise PreferenceConflict([f"{prefix}: {problem}" for problem in error.problems]) from error
    except Refused as error:
        if error.field is None:
            raise
        raise type(error)(**{**error.data, "field": f"{prefix}.{error.field}"}) from error
