"""Types of options. Their ranges are stated in words, in the help and in errors."""

from __future__ import annotations

from typing import Any

import click

from delegate.config import values

BUDGET_MAX = 1_000_000


class Duration(click.ParamType[int]):
    """Milliseconds, or a number with its unit."""

    name = "duration"

    def __init__(self, low: int, high: int, range_text: str) -> None:
        self._low, self._high, self._range_text = low, high, range_text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # click's own
        try:
            milliseconds = values.parse_duration_ms(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._low <= milliseconds <= self._high:
            self.fail(f"must be from {self._range_text}, not {milliseconds:,}", param, ctx)
        return milliseconds


class Dollars(click.ParamType[float]):
    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # click's own
        try:
            amount = float(value)
        except ValueError:
            amount = 0.0
        if not 0 < amount <= BUDGET_MAX:
            self.fail(f"must be US dollars, more than 0 and up to {BUDGET_MAX:,}, not {value}", param, ctx)
        return amount


class TaskIds(click.ParamType[str]):
    """One or more ids, separated by commas."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # click's own
        if not any(part.strip() for part in str(value).split(",")):
            self.fail("is empty; `delegate status` lists the tasks", param, ctx)
        return str(value)


TIMEOUT = Duration(*values.TIMEOUT_RANGE_MS, "1,000 ms (1s) to 86,400,000 ms (24h)")
