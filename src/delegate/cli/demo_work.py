"""The demo's throw-away repository, and the three pieces of work that mend it."""

from __future__ import annotations

from dataclasses import dataclass

SHOP = '''\
"""What a basket costs."""


def total(prices, discount_percent=0):
    """The sum of all prices, less a discount in percent."""
    return sum(prices) * (1 - discount_percent)
'''
TEST_SHOP = """\
import unittest

from shop import total


class TotalTest(unittest.TestCase):
    def test_prices_are_added_up(self):
        self.assertEqual(total([10, 20]), 30)

    def test_half_price(self):
        self.assertEqual(total([10, 20], discount_percent=50), 15)
"""
FILES = {"shop.py": SHOP, "test_shop.py": TEST_SHOP, ".gitignore": "__pycache__/\n"}
TEST_COMMAND = "python3 -m unittest"

# What `git -c` would say, for every git that the demo or its agents run: nobody's own settings decide how it ends.
GIT_SETTINGS = {
    "user.name": "Delegate demo",
    "user.email": "demo@delegate.invalid",
    "commit.gpgsign": "false",
    "core.hooksPath": "/dev/null",
    "init.defaultBranch": "main",
    "advice.detachedHead": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    name: str
    about: str
    command: str  # for the shell agent
    prompt: str  # for an agent with a model

    def text_for(self, agent: str) -> str:
        return self.command if agent == "shell" else self.prompt


WORKS = (
    Work(
        name="fix",
        about="mend the bug and commit",
        command="""\
grep -n 'return' shop.py
sed 's|(1 - discount_percent)|(1 - discount_percent / 100)|' shop.py > mended.py && mv mended.py shop.py
git commit --quiet --all --message 'Read the discount as a percentage'
git log --oneline --max-count 1""",
        prompt="The unit test in test_shop.py fails. Find the bug in shop.py, mend it with the smallest change, check "
        "it with `python3 -m unittest`, and commit it with git. Do not change the test.",
    ),
    Work(
        name="test",
        about="run the tests on the result",
        command=f"{TEST_COMMAND} --verbose",
        prompt="Run `python3 -m unittest --verbose` and say in one sentence whether all tests pass. Change no file.",
    ),
    Work(
        name="summary",
        about="write down what was done",
        command="""\
{ echo '# What was done'; echo; git log -1 --format='%s (%h).'; echo; git diff --stat HEAD~1 HEAD; } > SUMMARY.md
git add SUMMARY.md
git commit --quiet --message 'Say what was done'
cat SUMMARY.md""",
        prompt="Look at `git log` and at the last commit. Write SUMMARY.md: what was wrong, what was changed, how it "
        "was checked, in at most five lines. Commit it with git.",
    ),
)


def git_environment() -> dict[str, str]:
    pairs = enumerate(GIT_SETTINGS.items())
    named = {
        f"GIT_CONFIG_{part}_{number}": text
        for number, pair in pairs
        for part, text in zip(("KEY", "VALUE"), pair, strict=True)
    }
    return {**named, "GIT_CONFIG_COUNT": str(len(GIT_SETTINGS)), "GIT_TERMINAL_PROMPT": "0"}
