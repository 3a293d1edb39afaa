"""What a benchmark hands back, and how it is printed."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

HEADINGS = ("claim", "ours", "against", "ratio", "target", "verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One claim. `met` is None where nothing was promised, or where there was nothing to compare with."""

    claim: str
    ours: str
    against: str = ""
    ratio: str = ""
    target: str = ""
    met: bool | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        verdict = {True: "met", False: "MISSED", None: "not judged" if self.target else "for comparison"}[self.met]
        return (self.claim, self.ours, self.against, self.ratio, self.target, verdict)


def table(rows: Sequence[Row]) -> str:
    lines = [HEADINGS, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    drawn = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    drawn.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(drawn)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median_ms(samples: Sequence[float]) -> float:
    return statistics.median(samples) * 1000


def spread_ms(samples: Sequence[float]) -> str:
    """The median of some times, with the one that a tenth of them exceeds."""
    ordered = sorted(samples)
    return f"{median_ms(samples):.1f} ms (p90 {ordered[int(len(ordered) * 0.9)] * 1000:.1f})"


def median_ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    """Of times that were taken in turn: each is compared with its neighbour, so that slow minutes do not count."""
    return statistics.median(one / other for one, other in zip(ours, others, strict=True))


def beside(claim: str, ours: Sequence[float], others: Sequence[float], name: str, most: float) -> Row:
    """A claim of at most so many times what the others take."""
    ratio = median_ratio(ours, others)
    return Row(
        claim=claim,
        ours=spread_ms(ours),
        against=f"{name} {spread_ms(others)}",
        ratio=f"{ratio:.2f}",
        target=f"at most {most}",
        met=ratio <= most,
    )


def progress(text: str) -> None:
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()
