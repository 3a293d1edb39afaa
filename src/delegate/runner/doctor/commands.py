"""Guesses which programs the commands of a repository need."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from delegate.runner.agents.base import find_program

# Builtins and shell syntax: the programs behind them cannot be guessed.
SHELL_BUILTINS = re.compile(
    "alias|bg|break|case|cd|command|continue|do|done|echo|elif|else|esac|eval|exec|exit|export|false|fg|fi|for|function"
    "|getopts|hash|if|in|jobs|kill|let|local|printf|pwd|read|readonly|return|set|shift|source|test|then|times|trap|true"
    "|type|ulimit|umask|unalias|unset|until|wait|while"
)
PLAIN_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
SEPARATORS = {"&&", "||", ";", "|", "&"}
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def missing_programs(command: str, environ: Mapping[str, str]) -> list[str]:
    """The programs that are not on PATH. Paths are not checked: an earlier command may create them."""
    return [name for name in list_programs(command) if find_program(name, environ) is None]


def list_programs(command: str) -> list[str]:
    """The first word of each simple command that is plainly the name of a program."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # an open quote: the shell will report it
        return []
    found, is_first = [], True
    for word in words:
        if word in SEPARATORS:
            is_first = True
        elif is_first and not ASSIGNMENT.fullmatch(word):
            is_first = False
            if PLAIN_NAME.fullmatch(word) and not SHELL_BUILTINS.fullmatch(word):
                found.append(word)
    return list(dict.fromkeys(found))
