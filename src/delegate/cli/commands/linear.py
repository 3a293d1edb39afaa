"""`delegate linear`: connects Linear to the relay, and shows the connection."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from delegate.cli.context import CommandContext, HintedUsage, examples, shared_options
from delegate.cli.render import terminal
from delegate.errors import LinearDenied

if TYPE_CHECKING:
    from delegate.client.responses import LinearData

SCOPES = "read,write,app:assignable,app:mentionable"
APPROVAL_TIMEOUT = 300.0  # seconds for a person to approve the app in the browser
CALLBACK_PATH = "/callback"
WAYS = """\
Three ways to connect:
  OAuth app            `delegate linear connect --client-id ID --oauth`
                       A workspace admin approves the app in the browser. Agent sessions, webhooks.
  client credentials   `delegate linear connect --client-id ID`
                       A private app of the workspace; asks for its secret. Agent sessions, webhooks.
  API key              `delegate linear connect --api-key`
                       Your own key; asks for it. No agent sessions: labels start work, a comment reports it."""


@click.group(
    "linear",
    epilog=examples(
        "delegate linear connect --client-id 7f3a…",
        "delegate linear map --project delego-saas zietek/delego-saas",
        "delegate linear status",
    ),
)
@shared_options
def linear() -> None:
    """Connect Linear: delegate an issue, get the pull request on it."""


@linear.command(
    epilog=examples(
        "delegate linear connect",
        "delegate linear connect --client-id 7f3a… --webhook-secret",
        "delegate linear connect --client-id 7f3a… --oauth",
        "delegate linear connect --api-key",
    )
)
@click.option("--client-id", metavar="ID", help="The client id of the app in Linear.")
@click.option("--oauth", is_flag=True, help="Let a workspace admin approve the app in the browser.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="With --oauth: the port of the callback.")
@click.option("--api-key", is_flag=True, help="Use a personal API key; asks for it, or reads LINEAR_API_KEY.")
@click.option(
    "--webhook-secret", is_flag=True, help="Ask for the webhook's signing secret, or read LINEAR_WEBHOOK_SECRET."
)
@click.option("--member", "members", multiple=True, metavar="EMAIL", help="Only these people may start work.")
@shared_options
@click.pass_obj
def connect(
    context: CommandContext,
    client_id: str | None,
    oauth: bool,
    port: int,
    api_key: bool,
    webhook_secret: bool,
    members: tuple[str, ...],
) -> None:
    """Connect a workspace. Without options, show the three ways."""
    if client_id is None and not api_key:
        context.print([WAYS])
        return
    if client_id is not None and api_key:
        raise HintedUsage("--client-id and --api-key are two ways; use one", "`delegate linear connect` shows them")
    body = _credentials(context, client_id, oauth=oauth, port=port)
    if webhook_secret:
        body["webhookSecret"] = _secret(context, "LINEAR_WEBHOOK_SECRET", "signing secret of the webhook")
    if members:
        body["members"] = list(members)
    _show(context, context.client().linear("connect", body))


def _credentials(context: CommandContext, client_id: str | None, *, oauth: bool, port: int) -> dict[str, Any]:
    if client_id is None:
        return {"kind": "api_key", "apiKey": _secret(context, "LINEAR_API_KEY", "API key")}
    if oauth:
        return {"kind": "oauth", "clientId": client_id, **_ask_approval(context, client_id, port)}
    secret = _secret(context, "LINEAR_CLIENT_SECRET", "client secret of the app")
    return {"kind": "client_credentials", "clientId": client_id, "clientSecret": secret}


def _secret(context: CommandContext, variable: str, prompt: str) -> str:
    """Never an option: other users can read the arguments of a process."""
    given = context.environ.get(variable, "").strip()
    if not given and not terminal.is_terminal(sys.stdin):
        raise HintedUsage(f"there is no terminal to ask for the {prompt}", f"set {variable} in the environment")
    return given or str(click.prompt(prompt, hide_input=True, err=True)).strip()


def _ask_approval(context: CommandContext, client_id: str, port: int) -> dict[str, str]:
    """Show the address where an admin approves the app, and wait for Linear to send the browser back."""
    import base64  # noqa: PLC0415  these are needed only here
    import hashlib  # noqa: PLC0415
    from urllib.parse import urlencode  # noqa: PLC0415

    verifier, state = os.urandom(32).hex(), os.urandom(16).hex()
    digest = hashlib.sha256(verifier.encode()).digest()
    with _Callback(port) as callback:
        query = {
            "client_id": client_id,
            "redirect_uri": callback.url,
            "response_type": "code",
            "scope": SCOPES,
            "actor": "app",
            "state": state,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        address = context.client().linear_status()["authorizeUrl"]
        context.say(f"open {address}?{urlencode(query)}", f"the app must list {callback.url} as a callback URL")
        answer = callback.wait()
    if answer.get("state") != state or "code" not in answer:
        raise LinearDenied(why=answer.get("error", "the answer is not for this request"))
    return {"code": answer["code"], "codeVerifier": verifier, "redirectUri": callback.url}


class _Callback:
    """Listens on loopback for the one request with which the browser comes back."""

    def __init__(self, port: int) -> None:
        import socket  # noqa: PLC0415  needed only here

        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(APPROVAL_TIMEOUT)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}{CALLBACK_PATH}"

    def __enter__(self) -> _Callback:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def wait(self) -> Mapping[str, str]:
        from urllib.parse import parse_qsl, urlsplit  # noqa: PLC0415  needed only here

        while True:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                return {"error": "the app was not approved in time"}
            with connection:
                connection.settimeout(5.0)
                target = _request_target(connection.recv(16_384))
                found = dict(parse_qsl(urlsplit(target).query))
                is_answer = urlsplit(target).path == CALLBACK_PATH and "state" in found
                text = b"Connected. You can close this page." if is_answer else b"Not here."
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
                connection.sendall(head.encode() + text)
            if is_answer:
                return found


def _request_target(head: bytes) -> str:
    words = head.decode("latin-1").split(" ", 2)
    return words[1] if len(words) > 1 else "/"


@linear.command(epilog=examples("delegate linear status", "delegate linear status --json"))
@shared_options
@click.pass_obj
def status(context: CommandContext) -> None:
    """Show the connection: not connected, ready, connected or needs attention."""
    _show(context, context.client().linear_status())


@linear.command(epilog=examples("delegate linear test"))
@shared_options
@click.pass_obj
def test(context: CommandContext) -> None:
    """Ask Linear whether the credential is valid."""
    _show(context, context.client().linear("test", {}))


@linear.command(epilog=examples("delegate linear disconnect"))
@shared_options
@click.pass_obj
def disconnect(context: CommandContext) -> None:
    """Forget the credential. Tasks continue, and are no longer reported."""
    _show(context, context.client().linear("disconnect", {}))


@linear.command(
    "map",
    epilog=examples(
        "delegate linear map --project delego-saas zietek/delego-saas",
        "delegate linear map --team PER zietek/delego-saas --agent codex",
        "delegate linear map --team PER --remove",
    ),
)
@click.argument("repository", required=False)
@click.option("--team", metavar="NAME", help="A team, by its name or key.")
@click.option("--project", metavar="NAME", help="A project, by its name. It overrides its team.")
@click.option("--agent", metavar="AGENT", help="The agent for these issues.")
@click.option("--remove", is_flag=True, help="Remove the map.")
@shared_options
@click.pass_obj
def map_command(
    context: CommandContext,
    repository: str | None,
    team: str | None,
    project: str | None,
    agent: str | None,
    remove: bool,
) -> None:
    """Say which repository the issues of a team or project are for. Without arguments, list the maps."""
    if team is None and project is None:
        _show(context, context.client().linear_status())
        return
    if remove == (repository is not None):
        raise HintedUsage("give a REPOSITORY or --remove", "`delegate linear map --help` shows examples")
    wanted = {"team": team, "project": project, "repository": repository, "agent": agent}
    body = {name: value for name, value in wanted.items() if value is not None}
    _show(context, context.client().linear("map", body))


@linear.command(epilog=examples("delegate linear labels", "delegate linear labels --create"))
@click.option("--create", is_flag=True, help="Create the labels that are missing.")
@shared_options
@click.pass_obj
def labels(context: CommandContext, create: bool) -> None:
    """Show the label groups that Delegate reads, and create them."""
    found = context.client().linear_labels(create=create)
    if context.as_json:
        context.print_json(found)
        return
    context.print(
        f"{'exists' if one['exists'] else 'missing':8} {one['group']} / {one['name']}" for one in found["labels"]
    )
    if any(not one["exists"] for one in found["labels"]):
        context.say("some labels are missing", "create them with `delegate linear labels --create`")


def _show(context: CommandContext, found: LinearData) -> None:
    if context.as_json:
        context.print_json(found)
    else:
        context.print(_lines(found))


def _lines(found: LinearData) -> list[str]:
    lines = [f"Linear: {found['state']}" + (f" ({found['reason']})" if found["reason"] else "")]
    if found["workspace"] is not None:
        lines += [
            f"workspace: {found['workspace']}",
            f"acts as:   {found['user']} ({(found['kind'] or '').replace('_', ' ')})",
            f"webhooks:  {found['webhooks']}",
            f"waiting:   {found['inboxWaiting']} webhooks, {found['outboxWaiting']} posts",
        ]
    if found["scopes"]:
        lines.append(f"scopes:    {', '.join(found['scopes'])}")
    if found["members"]:
        lines.append(f"members:   {', '.join(found['members'])}")
    if found["outboxDead"]:
        lines.append(f"refused:   {found['outboxDead']} posts; the last error: {found['lastError']}")
    for one in found["maps"]:
        lines.append(
            f"{one['kind']:10} {one['name']} → {one['repository']}" + (f" ({one['agent']})" if one["agent"] else "")
        )
    return lines
