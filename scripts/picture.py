"""Draws docs/images/terminal.svg: a real session with the shell agent in a temporary repository and home."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "images" / "terminal.svg"
DELEGATE = Path(sys.executable).with_name("delegate")
TIMEOUT = 120.0  # seconds for one command
TITLE, FIX = "Fix the discount", r"sed -i 's|percent)$|percent / 100)|' shop.py"
FILES = {
    "shop.py": "def total(prices, discount_percent=0):\n    return sum(prices) * (1 - discount_percent)\n",
    "test_shop.py": """import unittest
from shop import total


class TotalTest(unittest.TestCase):
    def test_half_price(self):
        self.assertEqual(total([10, 20], 50), 15)
""",
    ".delegate.toml": 'checks = ["python3 -m unittest"]\n',
}
# Columns and rows in pixels, for a monospace font of 13 pixels.
CELL, LINE, MARGIN = 7.9, 19, 18
STYLE = """
  .back { fill: #f6f7f9; stroke: #d3d7de }
  text { fill: #2b3038; font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
  .command { font-weight: 600 }
  .good { fill: #1c6e3a }
  .faint { fill: #656d79 }
  @media (prefers-color-scheme: dark) {
    .back { fill: #1b1e24; stroke: #3a404a }
    text { fill: #d8dce3 }
    .good { fill: #7cc792 }
    .faint { fill: #949dab }
  }
"""
# The first rule that matches a line decides its class.
CLASSES = (
    (r"\$ ", "command"),
    (r".*\bpassed\b|.*  completed\b", "good"),
    (r".*\b(claimed|preferences|prompt of|started)\b", "faint"),
)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="delegate-picture-") as name:
        lines = record(Path(name).resolve())
    TARGET.write_text(draw(lines), encoding="utf-8")
    return 0


def record(place: Path) -> list[str]:
    session = Session(place)
    try:
        return session.play()
    finally:
        session.run(str(DELEGATE), "down", "--now")


class Session:
    """The commands of the picture, run in a repository of their own."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._shop = place / "shop"
        identity = {f"GIT_{who}_{what}": "Ada" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        own = {name: value for name, value in os.environ.items() if not name.startswith("DELEGATE_")}
        homes = {"HOME": str(place), "DELEGATE_HOME": str(place / ".delegate"), "GIT_CONFIG_GLOBAL": os.devnull}
        self._environment = {**own, **identity, **homes, "COLUMNS": "100"}

    def play(self) -> list[str]:
        self._make_repository()
        submit = ["run", "--pr", "-a", "shell", "--title", TITLE, FIX]
        shown = f'$ delegate run --pr -a shell --title "{TITLE}" "{FIX}"'
        task = self.run(str(DELEGATE), *submit).strip()
        self.run(str(DELEGATE), "logs", "-f", task)
        page = self.run(str(DELEGATE), "status", task).replace(str(self._place), "/home/ada")
        return [shown, task, "", f"$ delegate status {task}", *page.splitlines()]

    def _make_repository(self) -> None:
        self._shop.mkdir()
        for name, text in FILES.items():
            (self._shop / name).write_text(text)
        self.run("git", "init", "--quiet", "--initial-branch", "main")
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", "A shop with a bug")
        self.run("git", "clone", "--quiet", "--bare", ".", "../shop.git")
        self.run("git", "remote", "add", "origin", str(self._place / "shop.git"))

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self._shop, env=self._environment, capture_output=True, text=True, timeout=TIMEOUT, check=True
        )
        return done.stdout


def draw(lines: list[str]) -> str:
    width, height = round(max(map(len, lines)) * CELL) + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    texts = [_line(line, MARGIN + LINE * number + 13) for number, line in enumerate(lines) if line]
    box = f'<rect class="back" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" xml:space="preserve">'
    )
    title = "<title>A terminal: delegate run submits a task, delegate status shows its checked pull request</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", box, *texts, "</svg>", ""])


def _line(line: str, y: int) -> str:
    kind = next((name for pattern, name in CLASSES if re.match(pattern, line)), "")
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{MARGIN}" y="{y}"{attribute}>{escape(line, quote=False)}</text>'


if __name__ == "__main__":
    sys.exit(main())
