"""Fetches lists that the relay returns page by page, newest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

PAGE_MAX = 100
Row = TypeVar("Row")


def fetch_newest(page: Callable[[int, str | None], tuple[list[Row], str | None]], limit: int) -> tuple[list[Row], bool]:
    """Up to `limit` rows, and whether there are more; `page` takes a limit and a cursor, and returns the next one."""
    found: list[Row] = []
    cursor: str | None = None
    while True:
        rows, cursor = page(min(limit - len(found), PAGE_MAX), cursor)
        found += rows
        if cursor is None or len(found) >= limit:
            return found, cursor is not None
