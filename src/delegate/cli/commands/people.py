"""Commands for the people of a team's relay: user, token, login, logout, whoami, audit, purge."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from delegate.cli.commands.config import change_settings
from delegate.cli.context import CommandContext, WholeNumber, command_options, examples, fetch_newest, shared_options
from delegate.cli.render.terminal import TableRow, format_table, one_line
from delegate.cli.render.timeline import format_day
from delegate.cli.text_input import read_value
from delegate.client.client import Client
from delegate.config.settings import setting_spec
from delegate.errors import InvalidField

if TYPE_CHECKING:
    from delegate.client.responses import (
        AccessTokenData,
        AuditEntryData,
        DisabledPersonData,
        MeData,
        NewAccessTokenData,
        PersonData,
    )

ROLES = click.Choice(["viewer", "member", "admin"])
DAYS = WholeNumber(1, 3650, "a number of days")  # as model.TOKEN_DAYS_MAX
AUDIT_MAX = 10_000
TOKEN_MAX = 200  # as the relay reads
NEVER = "never"


def token_options(function: Any) -> Any:
    """How long a token is valid."""
    never = click.option("--no-expiry", is_flag=True, help="It does not end by itself.")
    days = click.option("--days", type=DAYS, metavar="N", help="Days until it ends. Default: 90.")
    return days(never(function))


def lifetime(days: int | None, *, no_expiry: bool) -> dict[str, object]:
    if no_expiry and days is not None:
        raise click.UsageError("give either --days or --no-expiry")
    if no_expiry:
        return {"expiresInDays": None}
    return {} if days is None else {"expiresInDays": days}


@click.group(epilog=examples("delegate user add marek --role admin", "delegate user list"))
@shared_options
def user() -> None:
    """Manage the users of the relay. For admins; the first one is added on the relay's machine."""


@user.command(
    epilog=examples("delegate user add marek --role admin", "delegate user add ana --email ana@example.com --days 30")
)
@click.argument("name")
@click.option("--role", type=ROLES, default="member", show_default=True, help="What the user may do.")
@click.option("--email", metavar="ADDRESS", help="To recognise the user in other systems.")
@token_options
@command_options
def add(context: CommandContext, name: str, role: str, email: str | None, days: int | None, no_expiry: bool) -> None:
    """Add a user, and print a token for them. It is shown only once."""
    address = {} if email is None else {"email": email}
    request = {"name": name, "role": role, **address, **lifetime(days, no_expiry=no_expiry)}
    added = context.client().add_person(request)
    if context.as_json:
        context.print_json(added)
    else:
        _print_token(context, added["token"], f"{name} is a user ({role})")


@user.command("list", epilog=examples("delegate user list", "delegate user list --json"))
@command_options
def list_users(context: CommandContext) -> None:
    """List the users by name."""
    people = context.client().people()
    if context.as_json:
        context.print_json_lines(people)
        return
    rows = [
        TableRow(
            cells=(one["name"], "disabled" if one["disabledAt"] else one["role"]), text=one["email"] or "", note=""
        )
        for one in people
    ]
    context.print(format_table(("NAME", "ROLE"), "EMAIL", rows, context.style()) if rows else ["no users"])


@user.command(epilog=examples("delegate user disable marek"))
@click.argument("name")
@command_options
def disable(context: CommandContext, name: str) -> None:
    """End all tokens of a user within 5 seconds.

    Tasks that have begun or wait continue. Schedules start nothing while the user is disabled, and the runners that
    the user paired finish what they hold and get nothing new.
    """
    disabled = context.client().disable_person(name)
    _print_person(context, disabled)
    if not context.as_json:
        context.print_details(_left_by(disabled))


@user.command(epilog=examples("delegate user enable marek"))
@click.argument("name")
@command_options
def enable(context: CommandContext, name: str) -> None:
    """Accept the tokens of a disabled user again. `delegate runner resume` lets their runners take tasks again."""
    _print_person(context, context.client().change_person(name, "enable"))


@user.command(epilog=examples("delegate user role marek viewer"))
@click.argument("name")
@click.argument("role", type=ROLES)
@command_options
def role(context: CommandContext, name: str, role: str) -> None:
    """Change what a user may do."""
    _print_person(context, context.client().change_person(name, "role", role=role))


def _left_by(disabled: DisabledPersonData) -> list[str]:
    """What a disabled user leaves, and how to stop it."""
    name, tasks, schedules = disabled["name"], disabled["tasks"], disabled["schedules"]
    return [
        *([f"tasks of {name} that continue: {tasks}; `delegate cancel ID` stops one"] if tasks else []),
        *([f"schedules that start nothing: {schedules}; `delegate schedule cancel ID` ends one"] if schedules else []),
        *(f"{one} takes no new tasks; `delegate runner revoke {one}` stops it now" for one in disabled["runners"]),
    ]


def _print_person(context: CommandContext, person: PersonData) -> None:
    context.print_result(person, [f"{person['name']} {'disabled' if person['disabledAt'] else person['role']}"])


@click.group(epilog=examples("delegate token create laptop", "delegate token list"))
@shared_options
def token() -> None:
    """Manage your tokens; for admins, those of all users."""


@token.command(epilog=examples("delegate token create laptop", "delegate token create ci --user marek --days 365"))
@click.argument("name")
@click.option("--user", "person", metavar="NAME", help="Whose token it is; only admins may name others.")
@token_options
@command_options
def create(context: CommandContext, name: str, person: str | None, days: int | None, no_expiry: bool) -> None:
    """Create a token, and print it. It is shown only once."""
    whose = {} if person is None else {"person": person}
    created = context.client().create_token({"name": name, **whose, **lifetime(days, no_expiry=no_expiry)})
    if context.as_json:
        context.print_json(created)
    else:
        _print_token(context, created, f"{created['tokenId']} is a token of {created['person']}")


@token.command("list", epilog=examples("delegate token list", "delegate token list --user marek"))
@click.option("--user", "person", metavar="NAME", help="Whose tokens.")
@command_options
def list_tokens(context: CommandContext, person: str | None) -> None:
    """List tokens, newest first: your own, or, for admins, those of all."""
    tokens = context.client().tokens(person)
    if context.as_json:
        context.print_json_lines(tokens)
        return
    headings = ("ID", "STATUS", "USER", "TOKEN", "ENDS", "LAST USED")
    context.print(format_table(headings, "NAME", [_token_row(one) for one in tokens], context.style()))


def _token_row(one: AccessTokenData) -> TableRow:
    cells = (
        one["tokenId"],
        one["status"],
        one["person"],
        f"{one['prefix']}…",
        _day(one["expiresAt"]),
        _day(one["lastUsedAt"]),
    )
    return TableRow(cells=cells, text=one_line(one["name"]), note="")


@token.command(epilog=examples("delegate token revoke token-1f0c9a77e2"))
@click.argument("token_id", metavar="ID")
@command_options
def revoke(context: CommandContext, token_id: str) -> None:
    """End a token at once."""
    revoked = context.client().revoke_token(token_id)
    context.print_result(revoked, [f"{revoked['tokenId']} {revoked['status']}"])


def _print_token(context: CommandContext, made: NewAccessTokenData, what: str) -> None:
    context.print([made["token"]])
    ends = NEVER if made["expiresAt"] is None else f"at {format_day(made['expiresAt'])}"
    context.say(
        f"{what}; this token is not shown again, and ends {ends}", "`delegate login URL` stores it on a machine"
    )


def _day(moment: str | None) -> str:
    return NEVER if moment is None else format_day(moment)


@click.command(
    epilog=examples("delegate login https://relay.example.com", "delegate login https://relay.example.com < token.txt")
)
@click.argument("url")
@click.option("--ca-file", metavar="FILE", help="Certificates of the authority that signed the relay's, in PEM format.")
@command_options
def login(context: CommandContext, url: str, ca_file: str | None) -> None:
    """Use the relay at URL from this machine, with your token.

    The token is read from the terminal without showing it, or from standard input. Address and token are stored in the
    settings file, which only you can read.
    """
    try:
        address = str(setting_spec("relay_url").parse(url))
    except ValueError as error:
        raise InvalidField(field="URL", why=str(error)) from None
    secret = _read_token()
    trusted = context.settings.ca_file if ca_file is None else setting_spec("ca_file").parse(ca_file)
    used = replace(context.settings, relay_url=address, token=secret, ca_file=trusted)
    me = Client(used, notice=context.say_once, patience=0.0).me()  # a URL that was mistyped is not tried again
    stored = {} if ca_file is None else {"ca_file": str(trusted)}
    change_settings(context, {"relay_url": address, "token": secret, **stored})
    context.print_result(me, [f"logged in to {address} as {_describe(me)}"])
    for one in context.resolved_settings:
        if one.name in {"relay_url", "token"} and one.variable is not None:
            context.say(f"{one.variable} is set in the environment and overrides it")


def _read_token() -> str:
    if sys.stdin is not None and sys.stdin.isatty():
        given: str = click.prompt("token", hide_input=True, err=True, prompt_suffix=": ")
    else:
        given = read_value("token")
    secret = given.strip()
    if not secret.isascii() or not secret.isprintable() or " " in secret or len(secret) > TOKEN_MAX:
        why = (
            f"is not a token: it is longer than {TOKEN_MAX} characters, or has blanks or others that tokens do not have"
        )
        raise InvalidField(field="token", why=why)
    return secret


@click.command(epilog=examples("delegate logout"))
@command_options
def logout(context: CommandContext) -> None:
    """Forget the relay and the token that `delegate login` stored. The token stays valid: revoke it if it leaked."""
    stored = [one.name for one in context.resolved_settings if one.is_in_file]
    was_in = not {"relay_url", "token"}.isdisjoint(stored)
    change_settings(context, {"relay_url": None, "token": None})
    context.print_result({"wasLoggedIn": was_in}, ["logged out" if was_in else "you were not logged in"])


@click.command(epilog=examples("delegate whoami"))
@command_options
def whoami(context: CommandContext) -> None:
    """Show whom the relay takes you for."""
    client = context.client()
    me = client.me()
    if context.as_json:
        context.print_json({**me, "url": client.url})
        return
    ends = f", token {one_line(me['tokenName'])} ends {_day(me['expiresAt'])}" if me["tokenName"] else ""
    context.print([f"{_describe(me)} at {client.url}{ends}"])


def _describe(me: MeData) -> str:
    return f"{me['name']} ({me['role'] or me['kind']})"


@click.command(epilog=examples("delegate audit", "delegate audit --limit 1000 --json"))
@click.option(
    "-n",
    "--limit",
    type=WholeNumber(1, AUDIT_MAX),
    default=50,
    show_default=True,
    metavar="N",
    help="How many entries.",
)
@command_options
def audit(context: CommandContext, limit: int) -> None:
    """Show who did what, newest first. For admins."""
    client = context.client()

    def page(count: int, cursor: str | None) -> tuple[list[AuditEntryData], str | None]:
        found = client.audit(limit=count, cursor=cursor)
        return found["entries"], found["next"]

    entries, has_more = fetch_newest(page, limit)
    if context.as_json:
        context.print_json_lines(entries)
        return
    context.print(format_table(("TIME", "WHO", "WHAT"), "ON", [_audit_row(one) for one in entries], context.style()))
    if has_more:
        context.say(f"there are more than {limit} entries", "`delegate audit --limit N` shows more")


def _audit_row(entry: AuditEntryData) -> TableRow:
    details = " ".join(f"{key}={one_line(str(value))}" for key, value in entry["details"].items())
    cells = (format_day(entry["at"]), one_line(entry["actor"]), entry["action"])
    return TableRow(cells=cells, text=" ".join(filter(None, (one_line(entry["subject"]), details))), note="")


@click.command(epilog=examples("delegate purge task-1f0c9a77e2"))
@click.argument("task_id", metavar="ID")
@command_options
def purge(context: CommandContext, task_id: str) -> None:
    """Remove the texts of an ended task from the relay for good: prompt, output, messages, diff. For admins.

    Its states and numbers stay. The command lists where the texts may still be.
    """
    purged = context.client().purge(task_id)
    if context.as_json:
        context.print_json(purged)
        return
    context.print([f"{purged['taskId']} purged"])
    if purged["remains"]:
        context.print_details(["what the relay cannot remove:", *(f"  {one_line(text)}" for text in purged["remains"])])
