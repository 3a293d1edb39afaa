"""The pages of the documentation, as the tests read them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "delegate"
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
HEADING = re.compile(r"^(#+) +(.+)$", re.M)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Page:
    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """Without code blocks, in which a # is not a heading and a bracket not a link."""
        return FENCE.sub("", self.text)

    @property
    def headings(self) -> list[str]:
        return [title for _, title in HEADING.findall(self.prose)]

    @property
    def anchors(self) -> set[str]:
        return {slug(title) for title in self.headings}

    @property
    def links(self) -> list[str]:
        return LINK.findall(self.prose)

    @property
    def codes(self) -> set[str]:
        """Everything that stands in backticks."""
        return set(CODE.findall(self.prose))

    @property
    def rows(self) -> list[list[str]]:
        """The cells of all tables, without their headings."""
        return table_rows(self.prose)

    def section(self, title: str) -> str:
        """From a heading of the second level to the next, code blocks included."""
        found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", self.text, re.M | re.S)
        return found[1] if found else ""


def page(name: str) -> Page:
    return Page(ROOT / name)


def all_pages() -> list[Page]:
    return [Page(path) for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])]


def slug(title: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def table_rows(text: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in _table_lines(text)]
    rules = [index for index, row in enumerate(rows) if set("".join(row)) <= {"-", ":"}]
    headings = {index - 1 for index in rules}
    return [row for index, row in enumerate(rows) if index not in headings and index not in rules]


def _table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def codes_in(text: str) -> list[str]:
    return CODE.findall(text)
