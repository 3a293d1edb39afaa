"""The profiles of this machine: each is the home of one paired runner."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import click

from delegate.cli.context import CommandContext
from delegate.config.pairing import DEFAULT_PROFILE, profile_home, read_pairing
from delegate.config.paths import Home
from delegate.errors import BadPolicy, DelegateError
from delegate.preferences.policyfile import read_policy

PROFILE_VARIABLES = ("DELEGATE_HOME", "DELEGATE_CA_FILE", "DELEGATE_PRIVACY")  # that a profile sets itself
Function = TypeVar("Function", bound=Callable[..., Any])  # Any: click passes the values of the options


def profile_option(function: Function) -> Function:
    option = click.option(
        "--profile",
        metavar="NAME",
        default=DEFAULT_PROFILE,
        show_default=True,
        help="The runner's profile: each is a runner of its own.",
    )
    return option(function)


def local_profile_option(function: Function) -> Function:
    return click.option("--profile", metavar="NAME", help="Of this paired runner instead of the local pool.")(function)


def profile_context(context: CommandContext, profile: str) -> CommandContext:
    """The same command in the home of a profile, whose relay and token come from its pairing."""
    home = profile_home(context.home, profile)
    left_out = {"DELEGATE_RELAY_URL", "DELEGATE_TOKEN"}
    environ = {name: value for name, value in context.environ.items() if name not in left_out}
    with suppress(DelegateError):
        if ca_file := read_pairing(home).ca_file:
            environ["DELEGATE_CA_FILE"] = ca_file
    with suppress(BadPolicy):
        environ["DELEGATE_PRIVACY"] = read_policy(home.policy).privacy
    return replace(context, environ={**environ, "DELEGATE_HOME": str(home.root)})


def paired_profiles(home: Home) -> list[str]:
    if not home.profiles.is_dir():
        return []
    return sorted(path.name for path in home.profiles.iterdir() if Home(path).pairing.exists())
