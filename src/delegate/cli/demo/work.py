"""The demo's temporary repository, and the tasks that run in it."""

from __future__ import annotations

from collections.abc import Mapping
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
BUG = "a discount of 50 percent takes off fifty times the price"
TEST_COMMAND = "python3 -m unittest"
FILES = {
    "shop.py": SHOP,
    "test_shop.py": TEST_SHOP,
    ".gitignore": "__pycache__/\n",
    ".delegate.toml": f'checks = ["{TEST_COMMAND}"]\n',
}

# Applied, as with `git -c`, to every git of the demo and its agents, so that the user's settings do not matter.
GIT_SETTINGS = {
    "user.name": "Delegate demo",
    "user.email": "demo@delegate.invalid",
    "commit.gpgsign": "false",
    "core.hooksPath": "/dev/null",
    "init.defaultBranch": "main",
    "advice.detachedHead": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWork:
    name: str
    title: str
    command: str  # for the shell agent
    prompt: str = ""  # for other agents; without it, the command runs in any case
    after: tuple[str, ...] = ()  # the names of the work items it waits for
    ends: str = "completed"

    def request(self, defaults: Mapping[str, object]) -> dict[str, object]:
        """The request for the relay; work with a prompt ends in a pull request, a command runs in place."""
        agent = defaults["agent"] if self.prompt else "shell"
        text = self.command if agent == "shell" else self.prompt
        named = {"name": self.name, "title": self.title, "dependsOn": list(self.after)}
        return {**defaults, **named, "agent": agent, "prompt": text, "pr": bool(self.prompt)}


CHAIN = (
    DemoWork(name="build", title="build", command="git archive --output ../shop.tar HEAD"),
    DemoWork(name="test", title="test", command=TEST_COMMAND, after=("build",), ends="failed"),
    DemoWork(name="deploy", title="deploy", command="cp ../shop.tar ../live.tar", after=("test",), ends="cancelled"),
)
WORKS = (
    DemoWork(
        name="fix",
        title="Read the discount as a percentage",
        command="""\
grep -n 'return' shop.py
sed 's|(1 - discount_percent)|(1 - discount_percent / 100)|' shop.py > fixed.py && mv fixed.py shop.py
git commit --quiet --all --message 'Read the discount as a percentage'
echo 'A discount of 50 took off fifty times the price; `total` divides it by 100 now.'""",
        prompt="The unit test in test_shop.py fails. Find the bug in shop.py, fix it with the smallest change, and "
        "commit it with git. Do not change the test.",
    ),
    DemoWork(
        name="feature",
        title="Say what a basket costs in words",
        command="""\
sed 's|(1 - discount_percent)|(1 - discount_percent / 100)|' shop.py > fixed.py && mv fixed.py shop.py
{ echo; echo; echo 'def receipt(prices):'
  echo '    return f"{len(prices)} items, {total(prices):.2f} in all"'; } >> shop.py
{ echo; echo '    def test_receipt(self):'
  echo '        self.assertEqual(receipt([1, 2]), "2 items, 3.00 in all")'; } >> test_shop.py
sed 's|import total|import receipt, total|' test_shop.py > with_receipt.py && mv with_receipt.py test_shop.py
echo 'Added `receipt` and a test of it; the discount had to be fixed first.'""",
        prompt="Add a function receipt(prices) to shop.py that returns text like '2 items, 3.00 in all', with a unit "
        "test. If a test fails because of another bug in shop.py, fix that too.",
    ),
    DemoWork(
        name="list",
        title="List the work that is ready",
        command="git ls-remote --heads origin",
        after=("fix", "feature"),
    ),
)
TRY_OUT = DemoWork(
    name="hello",
    title="Say hello from Delegate",
    command="echo 'Delegate was here, and opened this pull request by itself.' > DELEGATE-DEMO.md",
    prompt="Add a file DELEGATE-DEMO.md with one friendly sentence that says that Delegate was here, and nothing else.",
)


def git_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    settings = {**GIT_SETTINGS, **(more or {})}
    pairs = enumerate(settings.items())
    named = {
        f"GIT_CONFIG_{part}_{number}": text
        for number, pair in pairs
        for part, text in zip(("KEY", "VALUE"), pair, strict=True)
    }
    return {**named, "GIT_CONFIG_COUNT": str(len(settings)), "GIT_TERMINAL_PROMPT": "0"}
