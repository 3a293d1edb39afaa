"""Loopback stand-in for Linear: its GraphQL API checked against Linear's published schema, OAuth, signed webhooks,
agent sessions, rate limits, and faults on demand.

    with LinearStandin(webhook_url=url, clock=ManualClock()) as linear:
        issue = linear.add_issue("Fix the export", description="...", labels=["backend"])
        session = linear.delegate_issue(issue)        # a signed AgentSessionEvent goes out
        linear.settle()                               # every due delivery has been attempted
        linear.reply(session, "Also cover the empty range")
        linear.chaos("rate_limit", times=3, retry_after=2)
        print(linear.transcript(session))

Control methods accept an entity, its id, or for an issue its identifier. Times come from `clock`, a function that
returns epoch seconds: sessions go stale, tokens expire and retries fall due by it.

DOC in a comment marks behaviour that Linear documents, SEEN an answer that users of the live API have recorded,
ASSUMED a guess; where a guess matters, a switch of the stand-in changes it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import re
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    GraphQLEnumType,
    GraphQLError,
    GraphQLResolveInfo,
    OperationDefinitionNode,
    execute_sync,
    get_named_type,
    is_list_type,
    is_non_null_type,
    parse,
    validate,
)
from tests.fakes.linear_deliveries import (
    ACCESS_TOKEN_SECONDS,
    API_FAULTS,
    APP_EVENTS,
    CLIENT_TOKEN_SECONDS,
    CODE_SECONDS,
    DATA_EVENTS,
    DEFAULT_PAGE,
    KNOWN_SCOPES,
    LIMITS,
    MAX_PAGE,
    MAX_QUERY_COMPLEXITY,
    MISSING,
    SCHEMA_PATH,
    WEBHOOK_FAULTS,
    Clock,
    Delivery,
    Entity,
    Fault,
    Faults,
    Json,
    Refused,
    WebhookSender,
    invalid,
    iso,
    unauthenticated,
)
from tests.fakes.linear_operations import (
    COMPARE,
    COMPUTED,
    DURATION,
    MANY,
    MUTATIONS,
    ONE,
    REVERSE,
    Bucket,
    Token,
    complexity,
    load_schema,
)
from tests.fakes.linear_workspace import Workspace


class LinearStandin(Workspace):
    """The server and its controls; see the module's docstring."""

    caller: Token  # who the operation being executed acts for; guarded by `lock`

    def __init__(
        self,
        *,
        webhook_url: str | None = None,
        clock: Clock = time.time,
        port: int = 0,
        seed: int | None = None,
        schema_path: Path = SCHEMA_PATH,
        app_name: str = "Delego",
        limits: dict[str, tuple[int, int]] | None = None,
        **sender_options: Any,
    ):
        """sender_options go to WebhookSender: timeout, retry_after, renew_timestamp, workers, ..."""
        super().__init__(clock, seed, name="Acme", app_name=app_name)
        self.schema = load_schema(schema_path)
        self.faults = Faults()
        self.sender = WebhookSender(clock, self.new_id, self.faults, **sender_options)
        self.duplicate_ids = "refuse"  # ASSUMED; "return" answers with the first activity
        self.announce_own_sessions = False  # ASSUMED: no `created` event for the app's own sessions
        self.validation_status = 400  # SEEN; the error itself has the usual shape
        self.rate_limit_status = 400  # DOC; 429 has been reported too
        self.client_credentials_enabled = True
        self.consent = True  # whether people approve the app at /oauth/authorize
        self.limits = {**LIMITS, **(limits or {})}
        self.client_secret, self.redirect_uris = f"secret-{self.new_id()}", ["http://127.0.0.1/callback"]
        self.tokens: dict[str, Token] = {}
        self.refresh_tokens: dict[str, Token] = {}
        self.codes: dict[str, Json] = {}
        self.buckets: dict[tuple[str, str], tuple[Bucket, Bucket]] = {}
        self.documents: dict[str, tuple[DocumentNode, list[GraphQLError]]] = {}
        self.requests: list[Json] = []
        self.unmodelled: set[str] = set()  # schema fields that were answered with an empty value
        self.admin = self.add_user("Marek", admin=True)
        self.team = self.add_team("PER", "Platform")
        self.api_key = self.add_api_key(self.admin)
        self.app_token = self._issue_token(self.app_user, self.app_scopes, "oauth").value
        self.caller = self.tokens[self.app_token]
        self.webhook = self.add_webhook(webhook_url, [*APP_EVENTS, *DATA_EVENTS]) if webhook_url else None
        self.server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"linear": self}))
        self.port = self.server.server_address[1]
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.api_url = f"{self.base_url}/graphql"
        self.thread: threading.Thread | None = None

    # -- life cycle ----------------------------------------------------------------------------------
    def start(self) -> LinearStandin:
        self.sender.start()
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()
        return self

    def stop(self, session: Entity | str | None = None, *, by: Entity | str | None = None) -> Entity | None:
        """Without a session: stop the server. With one: a person presses stop on it."""
        if session is not None:
            return self.send_stop(session, by=by)
        self.sender.close()
        if self.thread:  # shutdown() waits for a loop that must have been started
            self.server.shutdown()
        self.server.server_close()
        return None

    __enter__ = start

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    # -- controls --------------------------------------------------------------------------------------
    def chaos(self, kind: str, *, times: int = 1, match: str = "", **options: Any) -> Fault:
        """Order a fault for the next `times` deliveries or requests that match.

        Deliveries ("Type.action"): duplicate(copies, new_id), delay(seconds), reorder, withhold,
        corrupt_signature, old_timestamp(seconds). Requests (path, operation and variables):
        errors(code), status(status, retry_after), timeout(seconds), reset, slow(seconds),
        rate_limit(retry_after), revoke_token. With applied=True the request takes effect first."""
        if kind not in WEBHOOK_FAULTS | API_FAULTS:
            raise ValueError(f"unknown fault {kind}")
        fault = Fault(kind, times, match, options)
        self.faults.pending.append(fault)
        return fault

    def calm(self) -> None:
        """Drop every fault that has not struck and release what was kept back."""
        self.faults.pending.clear()
        self.sender.release()

    def settle(self, timeout: float = 10.0) -> None:
        self.sender.settle(timeout)

    @property
    def deliveries(self) -> list[Delivery]:
        return self.sender.log

    def add_webhook(
        self,
        url: str,
        resource_types: Iterable[str],
        *,
        secret: str | None = None,
        label: str | None = None,
        creator: Entity | None = None,
        team_id: str | None = None,
    ) -> Entity:
        return self._add(
            "Webhook",
            url=url,
            resourceTypes=list(resource_types),
            label=label,
            enabled=True,
            secret=secret or f"lin_wh_{self.new_id()}",
            teamId=team_id,
            allPublicTeams=team_id is None,
            creatorId=creator.id if creator else None,
            teamIds=None,
            failures=[],
        )

    def emit(self, event: str, action: str, body: Json, team_id: str | None = None) -> None:
        if event in APP_EVENTS:
            body = {"oauthClientId": self.oauth_client_id, **body}
            if event != "OAuthApp":
                body["appUserId"] = self.app_user.id
        payload = {
            "type": event,
            "action": action,
            "createdAt": iso(self.clock()),
            "organizationId": self.organization.id,
            **body,
        }
        for webhook in self.tables["Webhook"].values():
            in_scope = webhook["teamId"] in (None, team_id) and (event not in APP_EVENTS or webhook is self.webhook)
            if webhook["enabled"] and event in webhook["resourceTypes"] and in_scope:
                self.sender.post(webhook, f"{event}.{action}", payload)

    def git_event(self, issue: Entity | str, event: str) -> None:
        """What the GitHub integration does to the state: start, draft, review, mergeable, merge."""
        row = self.get("Issue", issue)
        for rule in self.tables["GitAutomationState"].values():
            if rule["teamId"] == row["teamId"] and rule["event"] == event:
                self.update_issue(row, self.github, {"stateId": rule["stateId"]})

    def uninstall(self) -> None:
        """An admin removes the app: its tokens die and the OAuthApp revoked event goes out."""
        with self.lock:
            for token in [t for t in self.tokens.values() if t.user is self.app_user]:
                self.revoke(token.value)
            self.emit("OAuthApp", "revoked", {})

    def add_api_key(self, user: Entity, scopes: Sequence[str] = ("read", "write")) -> str:
        granted = (*scopes, "admin") if user["admin"] else tuple(scopes)
        key = f"lin_api_{self.new_id().replace('-', '')}"
        self.tokens[key] = Token(key, user, granted, "key")
        return key

    # -- OAuth -------------------------------------------------------------------------------------------
    def revoke(self, value: str) -> None:
        token = self.tokens.pop(value, None)
        if token:
            self.refresh_tokens.pop(token.refresh, None)

    def rotate_client_secret(self) -> str:
        self.client_secret = f"secret-{self.new_id()}"
        for token in [t for t in self.tokens.values() if t.kind == "client"]:  # DOC
            self.revoke(token.value)
        return self.client_secret

    def _issue_token(self, user: Entity, scopes: Sequence[str], kind: str) -> Token:
        life = CLIENT_TOKEN_SECONDS if kind == "client" else ACCESS_TOKEN_SECONDS
        token = Token(
            f"lin_oauth_{self.new_id().replace('-', '')}",
            user,
            tuple(scopes),
            kind,
            self.clock() + life,
            "" if kind == "client" else f"refresh_{self.new_id()}",
        )
        self.tokens[token.value] = token
        if token.refresh:
            self.refresh_tokens[token.refresh] = token
        return token

    def authorize(self, query: dict[str, str]) -> tuple[int, Json, dict[str, str]]:
        """DOC: the code and the state come back in the query of the redirect URI. Nobody is asked:
        `consent` decides. DOC: actor=app needs an admin; `admin` is who authorizes."""
        back = query.get("redirect_uri", "")
        if query.get("client_id") != self.oauth_client_id or back not in self.redirect_uris:
            return 400, {"error": "invalid_request", "error_description": "Invalid client_id or redirect_uri"}, {}
        scopes = re.split(r"[ ,]+", query.get("scope", "")) if query.get("scope") else []
        code, error = f"code-{self.new_id()}", ""
        if query.get("response_type") != "code":
            error = "unsupported_response_type"
        elif not scopes or set(scopes) - KNOWN_SCOPES:
            error = "invalid_scope"
        elif not self.consent or (query.get("actor") == "app" and not self.admin["admin"]):
            error = "access_denied"
        self.codes[code] = {**query, "scopes": tuple(dict.fromkeys(["read", *scopes])), "at": self.clock()}
        answer = {"error": error} if error else {"code": code}
        if "state" in query:
            answer["state"] = query["state"]
        joint = "&" if "?" in back else "?"
        return 302, {}, {"Location": back + joint + urllib.parse.urlencode(answer)}

    def exchange(  # noqa: PLR0911  # one refusal each
        self, form: dict[str, str], authorization: str
    ) -> tuple[int, Json, dict[str, str]]:
        """POST /oauth/token."""
        client, secret = form.get("client_id"), form.get("client_secret")
        if authorization.startswith("Basic "):
            client, _, secret = base64.b64decode(authorization[6:]).decode().partition(":")
        grant, proven = form.get("grant_type"), secret == self.client_secret
        if client != self.oauth_client_id or (secret is not None and not proven):
            return 401, {"error": "invalid_client", "error_description": "Client authentication failed"}, {}
        failure = {"error": "invalid_grant", "error_description": "Invalid grant"}
        if grant == "client_credentials":
            if not self.client_credentials_enabled or not proven:  # DOC: this body
                return (
                    400,
                    {
                        "error": "Error",
                        "error_description": "Client does not support the client_credentials grant type",
                    },
                    {},
                )
            for old in [t for t in self.tokens.values() if t.kind == "client"]:
                self.revoke(old.value)  # DOC: one active token at a time
            scopes = re.split(r"[ ,]+", form.get("scope", "read"))
            return self._granted(self._issue_token(self.app_user, scopes, "client"))
        if grant == "refresh_token":
            # DOC: the answer holds a new refresh token. ASSUMED: the old one dies at once.
            spent = self.refresh_tokens.pop(form.get("refresh_token", ""), None)
            if spent is None:
                return 400, failure, {}
            return self._granted(self._issue_token(spent.user, spent.scopes, "oauth"))
        code = self.codes.pop(form.get("code", ""), None) if grant == "authorization_code" else None
        if (
            code is None
            or form.get("redirect_uri") != code["redirect_uri"]
            or self.clock() - code["at"] > CODE_SECONDS
            or not self._proves_possession(code, form, proven)
        ):
            return 400, failure, {}
        if code.get("actor") == "app":
            self.app_scopes = code["scopes"]
        user = self.app_user if code.get("actor") == "app" else self.admin
        return self._granted(self._issue_token(user, code["scopes"], "oauth"))

    def _proves_possession(self, code: Json, form: dict[str, str], secret_given: bool) -> bool:
        if "code_challenge" not in code:
            return secret_given
        verifier = form.get("code_verifier", "")
        if code.get("code_challenge_method", "plain") == "S256":
            digest = hashlib.sha256(verifier.encode()).digest()
            verifier = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        return hmac.compare_digest(verifier, code["code_challenge"])

    def _granted(self, token: Token) -> tuple[int, Json, dict[str, str]]:
        body: Json = {
            "access_token": token.value,
            "token_type": "Bearer",
            "scope": " ".join(token.scopes),
            "expires_in": int(token.expires_at - self.clock()),
        }
        return 200, body | ({"refresh_token": token.refresh} if token.refresh else {}), {}

    def oauth_revoke(self, form: dict[str, str], authorization: str) -> tuple[int, Json, dict[str, str]]:
        """DOC: 200 revoked, 400 unable to revoke, 401 unable to authenticate."""
        value = form.get("access_token") or authorization.removeprefix("Bearer ")
        if form.get("refresh_token") in self.refresh_tokens:
            value = self.refresh_tokens[form["refresh_token"]].value
        if not value and not form.get("refresh_token"):
            return 401, {"error": "unauthorized"}, {}
        if value not in self.tokens:
            return 400, {"error": "invalid_token"}, {}
        self.revoke(value)
        return 200, {}, {}

    def authenticate(self, authorization: str) -> Token:
        """DOC: OAuth tokens after Bearer, personal API keys bare."""
        bearer = authorization.startswith("Bearer ")
        token = self.tokens.get(authorization[7:] if bearer else authorization)
        if token and token.kind == "key" and bearer:
            raise unauthenticated("An API key is sent without the Bearer prefix.")
        if token is None or (token.kind != "key" and not bearer) or token.expires_at <= self.clock():
            raise unauthenticated()
        return token

    # -- GraphQL -------------------------------------------------------------------------------------------
    def graphql(self, authorization: str, raw: bytes, log: Json) -> tuple[int, Json, dict[str, str]]:
        try:
            token = self.authenticate(authorization)
        except Refused as refused:
            return 401, {"errors": [refused.shape()]}, {}
        log |= {"user": token.user["name"], "auth": token.kind}
        try:
            body = json.loads(raw)
            query, variables = str(body["query"]), dict(body.get("variables") or {})
        except (ValueError, KeyError, TypeError):
            return 400, {"errors": [Refused("Invalid request body", code="BAD_REQUEST").shape()]}, {}
        document, problems = self._document(query)
        wanted = body.get("operationName")
        operations = [d for d in document.definitions if isinstance(d, OperationDefinitionNode)]
        operation = next((o for o in operations if wanted in (None, "", o.name and o.name.value)), None)
        if operation is None and not problems:
            problems = [GraphQLError(f'Unknown operation named "{wanted}".')]
        cost = complexity(document, operation, variables) if operation and not problems else 1
        with self.lock:
            limited, headers = self._charge(token, cost)
        log["complexity"] = cost
        if limited:
            return self.rate_limit_status, {"errors": [limited.shape()]}, headers
        if problems or operation is None:
            return self.validation_status, {"errors": [self._shape(p) for p in problems]}, headers
        if cost > MAX_QUERY_COMPLEXITY:
            shown = f"The query's complexity is {cost}; the maximum is {MAX_QUERY_COMPLEXITY}."
            return 400, {"errors": [Refused("Query too complex", shown).shape()]}, headers
        log["fields"] = [f.name.value for f in operation.selection_set.selections if isinstance(f, FieldNode)]
        with self.lock:
            self.caller = token
            result = execute_sync(
                self.schema,
                document,
                context_value=token,
                variable_values=variables,
                operation_name=wanted or None,
                field_resolver=self._resolve,
                type_resolver=lambda value, *_: value.kind,
            )
        answer: Json = {"data": result.data}
        if result.errors:
            answer = {"errors": [self._shape(e) for e in result.errors], **answer}
        unread = result.data is None and not any(e.path for e in result.errors or [])
        return (self.validation_status if unread else 200), answer, headers

    def _document(self, query: str) -> tuple[DocumentNode, list[GraphQLError]]:
        if query not in self.documents:
            if len(self.documents) > 1000:
                self.documents.clear()
            try:
                document = parse(query)
                self.documents[query] = document, validate(self.schema, document)
            except GraphQLError as error:
                self.documents[query] = DocumentNode(definitions=()), [error]
        return self.documents[query]

    def _shape(self, error: GraphQLError) -> Json:
        """SEEN: the shape of a validation failure; resolver errors carry their own extensions."""
        shaped: Json = {"message": error.message}
        if error.locations:
            shaped["locations"] = [{"line": at.line, "column": at.column} for at in error.locations]
        if error.path:
            shaped["path"] = error.path
        if isinstance(error.original_error, Refused):
            return shaped | {"extensions": error.original_error.extensions}
        internal = error.original_error is not None and not isinstance(error.original_error, GraphQLError)
        code = "INTERNAL_SERVER_ERROR" if internal else "GRAPHQL_VALIDATION_FAILED"
        if error.message.startswith("Variable "):
            code = "BAD_USER_INPUT"  # ASSUMED: the code of Apollo Server, whose shape this is
        return shaped | {
            "extensions": {
                "http": {"status": 500 if internal else 400, "headers": {}},
                "code": code,
                "type": "internal error" if internal else "graphql error",
                "userError": not internal,
            }
        }

    def _charge(self, token: Token, cost: int) -> tuple[Refused | None, dict[str, str]]:
        """DOC: both budgets are per user and kind of credential; resets are epoch milliseconds.
        ASSUMED: a reset one hour ahead, and nothing charged for a refused request."""
        kind, now = ("key" if token.kind == "key" else "oauth"), self.clock()
        limits = self.limits[kind]
        buckets = self.buckets.setdefault(
            (kind, token.user.id), (Bucket(limits[0], limits[0], now), Bucket(limits[1], limits[1], now))
        )
        refused = None
        for bucket, amount, unit in zip(buckets, (1, cost), ("requests", "complexity points"), strict=True):
            bucket.refill(now)
            if bucket.level < amount:
                refused = Refused(
                    f"Rate limit exceeded. Only {bucket.limit:.0f} {unit} are allowed per 1 hour.",
                    code="RATELIMITED",
                    kind="ratelimited",
                    status=429,
                )
        headers = {"X-Complexity": str(cost)}
        for bucket, amount, name in zip(buckets, (1, cost), ("Requests", "Complexity"), strict=True):
            bucket.level -= 0 if refused else amount
            headers |= {
                f"X-RateLimit-{name}-Limit": f"{bucket.limit:.0f}",
                f"X-RateLimit-{name}-Remaining": str(int(bucket.level)),
                f"X-RateLimit-{name}-Reset": str(int((now + 3600) * 1000)),
            }
        return refused, headers

    def not_imitated(self, what: str) -> Refused:
        self.unmodelled.add(what)
        return Refused(
            f"stand-in: {what} is in Linear's schema but is not imitated here",
            code="STANDIN_NOT_IMITATED",
            kind="other",
            status=501,
        )

    def _resolve(self, source: Any, info: GraphQLResolveInfo[Any], **args: Any) -> Any:
        name = info.field_name
        if isinstance(source, Entity):
            value = self.value(source, name)
        elif isinstance(source, dict):
            value = source.get(name)
        elif info.parent_type.name == "Mutation":
            value = self._mutate(name, args, info.context)
        else:
            value = self._query(name, args, info.context)
        if value is MISSING:
            return self._empty(source, info)
        if get_named_type(info.return_type).name.endswith("Connection") and isinstance(value, list):
            return self.connection(value, args)
        return value

    def _mutate(self, name: str, args: Json, caller: Token) -> Json:
        if name not in MUTATIONS:
            raise self.not_imitated(f"Mutation.{name}")
        scopes, function = MUTATIONS[name]
        caller.require(*scopes)
        key, row = function(self, caller, args)
        return {"success": True, "lastSyncId": len(self.rows), key: row}

    def _query(self, name: str, args: Json, caller: Token) -> Any:  # noqa: PLR0911  # one kind of query each
        caller.require("admin" if name.startswith("webhook") else "read")
        if (name == "user" and args["id"] == "me") or name == "viewer":
            return caller.user
        if name in ONE:
            return self.get(ONE[name], args["id"])
        if name in MANY:
            rows = list(self.tables[MANY[name]].values())
            return [r for r in rows if not r.get("_replaced")]
        if name == "organization":
            return self.organization
        if name == "attachmentsForURL":
            return [a for a in self.tables["Attachment"].values() if a["url"] == args["url"]]
        if name == "issueVcsBranchSearch":
            return next(
                (i for i in self.tables["Issue"].values() if self.value(i, "branchName") == args["branchName"]), None
            )
        if name == "issueRepositorySuggestions":
            known = dict(self.repository_suggestions.get(self.get("Issue", args["issueId"]).id, []))
            found = [
                {**c, "confidence": known[c["repositoryFullName"]]}
                for c in args["candidateRepositories"]
                if c["repositoryFullName"] in known
            ]
            return {"suggestions": sorted(found, key=lambda c: -c["confidence"])}
        if name == "rateLimitStatus":
            kind = "key" if caller.kind == "key" else "oauth"
            return {
                "identifier": caller.user.id,
                "kind": kind,
                "limits": [
                    {
                        "type": unit,
                        "allowedAmount": b.limit,
                        "period": 3_600_000,
                        "remainingAmount": b.level,
                        "requestedAmount": 1,
                        "reset": int((b.at + 3600) * 1000),
                    }
                    for unit, b in zip(("requests", "complexity"), self.buckets[kind, caller.user.id], strict=True)
                ],
            }
        raise self.not_imitated(f"Query.{name}")

    def value(self, row: Entity, name: str) -> Any:
        """A field of a row: computed, stored, a reverse relation, or the row that an id names."""
        key = f"{row.kind}.{name}"
        if key in COMPUTED:
            return COMPUTED[key](self, row)
        if name in row:
            return row[name]
        if key in REVERSE:
            kind, owner = REVERSE[key]
            return [r for r in self.tables[kind].values() if r[owner] == row.id]
        if f"{name}Id" in row:
            return self.rows.get(row[f"{name}Id"] or "")
        return list(self.tables[MANY[name]].values()) if row.kind == "Organization" and name in MANY else MISSING

    def _empty(self, source: Entity, info: GraphQLResolveInfo[Any]) -> Any:
        """A value of the right type for a field that the workspace does not model."""
        self.unmodelled.add(f"{source.kind}.{info.field_name}")
        if not is_non_null_type(info.return_type):
            return None
        named, inner = get_named_type(info.return_type), info.return_type.of_type
        if is_list_type(inner):
            return []
        if named.name.endswith("Connection"):
            return self.connection([], {})
        if isinstance(named, GraphQLEnumType):
            return next(iter(named.values))
        blanks: Json = {
            "String": "",
            "ID": "",
            "Boolean": False,
            "Int": 0,
            "Float": 0.0,
            "JSON": {},
            "JSONObject": {},
            "DateTime": source.get("createdAt"),
        }
        if named.name in blanks:
            return blanks[named.name]
        raise self.not_imitated(f"{source.kind}.{info.field_name}")

    def connection(self, rows: list[Entity], args: Json) -> Json:
        """DOC: first/after, 50 by default, ordered by createdAt or updatedAt. ASSUMED: newest first."""
        key, size = args.get("orderBy") or "createdAt", args.get("first") or args.get("last") or DEFAULT_PAGE
        if not 0 < size <= MAX_PAGE:
            raise invalid(f"first must not be greater than {MAX_PAGE}.")
        rows = [
            r
            for r in rows
            if (args.get("includeArchived") or not r.get("archivedAt")) and self.matches(r, args.get("filter"))
        ]
        rows.sort(key=lambda r: (r[key], r["_seq"]), reverse=True)
        ids = [r.id for r in rows]
        if {args.get("after"), args.get("before")} - {None, *ids}:
            raise invalid("the cursor is not valid.")
        low = ids.index(args["after"]) + 1 if args.get("after") else 0
        high = ids.index(args["before"]) if args.get("before") else len(rows)
        low, high = (max(low, high - size), high) if args.get("last") else (low, min(high, low + size))
        page = rows[low:high]
        return {
            "nodes": page,
            "edges": [{"node": r, "cursor": r.id} for r in page],
            "pageInfo": {
                "hasNextPage": high < len(rows),
                "hasPreviousPage": low > 0,
                "startCursor": page[0].id if page else None,
                "endCursor": page[-1].id if page else None,
            },
        }

    def matches(self, row: Entity, wanted: Json | None) -> bool:
        for key, condition in (wanted or {}).items():
            if condition is None:
                continue
            if key in ("and", "or"):
                if condition and not (all if key == "and" else any)(self.matches(row, c) for c in condition):
                    return False
                continue
            value = self.value(row, key)
            if value is MISSING:
                raise self.not_imitated(f"filter {row.kind}.{key}")
            test = condition
            if row.kind == "Issue" and key == "id":  # the schema: identifiers are accepted too
                test = {
                    op: [self._issue_id(i) for i in w] if isinstance(w, list) else self._issue_id(w)
                    for op, w in condition.items()
                }
            if not self._satisfies(value, test):
                return False
        return True

    def _issue_id(self, key: str) -> str:
        return next((i.id for i in self.tables["Issue"].values() if i["identifier"] == key), key)

    def _satisfies(self, value: Any, condition: Json) -> bool:
        if isinstance(value, list):  # a relation to many; without some/every it means some
            tests = dict(condition)
            length, every, some = (tests.pop(k, None) for k in ("length", "every", "some"))
            return (
                (not length or self._satisfies(len(value), length))
                and (not every or all(self.matches(r, every) for r in value))
                and (not some or any(self.matches(r, some) for r in value))
                and (not tests or any(self.matches(r, tests) for r in value))
            )
        if isinstance(value, Entity):
            rest = {k: v for k, v in condition.items() if k != "null"}
            return condition.get("null") is not True and self.matches(value, rest)
        if value is None and not set(condition) <= set(COMPARE):
            return condition.get("null") is True
        for op, wanted in condition.items():
            if op not in COMPARE:
                raise self.not_imitated(f"comparator {op}")
            if wanted is not None and not COMPARE[op](value, self._operand(value, wanted)):
                return False
        return True

    def _operand(self, value: Any, wanted: Any) -> Any:
        """Dates compare as Linear writes them; a duration such as -P1D is relative to now."""
        if not (isinstance(value, str) and isinstance(wanted, str) and re.match(r"\d{4}-\d\d-\d\dT", value)):
            return wanted
        if match := DURATION.fullmatch(wanted):
            amounts = (int(part or 0) for part in match.groups()[1:])
            span = sum(a * unit for a, unit in zip(amounts, (604_800, 86_400, 3600, 60, 1), strict=True))
            return iso(self.clock() + (-span if match[1] else span))
        try:
            moment = datetime.fromisoformat(wanted)
        except ValueError:
            raise invalid(f"{wanted} is not a date.") from None
        return iso((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())

    # -- HTTP ------------------------------------------------------------------------------------------
    def answer(
        self, path: str, query: dict[str, str], raw: bytes, authorization: str, log: Json
    ) -> tuple[int, Json, dict[str, str]]:
        if path == "/graphql":
            return self.graphql(authorization, raw, log)
        form = dict(urllib.parse.parse_qsl(raw.decode("utf-8", "replace")))
        with self.lock:
            if path == "/oauth/authorize":
                return self.authorize(query)
            if path == "/oauth/token":
                return self.exchange(form, authorization)
            if path == "/oauth/revoke":
                return self.oauth_revoke(form, authorization)
        return 404, {"error": "Not found"}, {}

    def fault_answer(self, fault: Fault, authorization: str) -> tuple[int, Json, dict[str, str]]:
        options = fault.options
        headers = {"Retry-After": str(options["retry_after"])} if "retry_after" in options else {}
        if fault.kind == "revoke_token":
            self.revoke(authorization.removeprefix("Bearer "))
            return 401, {"errors": [unauthenticated().shape()]}, {}
        if fault.kind == "rate_limit":
            reset = str(int((self.clock() + options.get("retry_after", 3600)) * 1000))
            headers |= {"X-RateLimit-Requests-Remaining": "0", "X-RateLimit-Requests-Reset": reset}
            refused = Refused("Rate limit exceeded", code="RATELIMITED", kind="ratelimited", status=429)
            return self.rate_limit_status, {"errors": [refused.shape()]}, headers
        if fault.kind == "errors":
            code = options.get("code", "INTERNAL_SERVER_ERROR")
            refused = Refused("Something went wrong", code=code, kind="internal error", status=500)
            return 200, {"errors": [refused.shape()], "data": None}, headers
        return options.get("status", 500), {"error": "Internal server error"}, headers


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "linear-standin"
    disable_nagle_algorithm = True
    wbufsize = -1
    linear: LinearStandin

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client was killed
            super().handle()

    def log_message(self, *_args: object) -> None:
        pass

    def _any(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        target, linear = urllib.parse.urlsplit(self.path), self.linear
        authorization = self.headers.get("authorization", "")
        query = dict(urllib.parse.parse_qsl(target.query))
        log: Json = {
            "at": linear.clock(),
            "method": self.command,
            "path": target.path,
            "body": raw.decode("utf-8", "replace"),
        }
        fault = linear.faults.take(API_FAULTS, f"{target.path} {log['body']}")
        broken = fault is not None and fault.kind not in ("slow",)
        if not broken or (fault and fault.options.get("applied")):
            status, answer, headers = linear.answer(target.path, query, raw, authorization, log)
        if fault:
            log["fault"] = fault.kind
            if fault.kind in ("timeout", "slow"):
                time.sleep(fault.options.get("seconds", 1.0))
            if fault.kind in ("timeout", "reset"):
                linear.requests.append(log | {"status": 0})
                self._drop(reset=fault.kind == "reset")
                return
            if broken:
                status, answer, headers = linear.fault_answer(fault, authorization)
        errors = [e["extensions"]["code"] for e in answer.get("errors", [])]
        linear.requests.append(log | {"status": status, "errors": errors})
        self._send(status, answer, headers)

    do_GET = do_POST = _any  # noqa: N815  # the names that http.server looks for

    def _send(self, status: int, answer: Json, headers: dict[str, str]) -> None:
        payload = json.dumps(answer, default=str).encode()
        self.send_response(status)
        for key, value in {"Content-Type": "application/json; charset=utf-8", **headers}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def _drop(self, *, reset: bool) -> None:
        """Close without an answer; with reset the peer sees a TCP reset."""
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            socket.close(self.connection.detach())


def tell_per_44(linear: LinearStandin) -> Entity:
    """The workspace of the seed's story, up to the delegation of PER-44."""
    project = linear.add_project("delego-saas")
    for number, title in (
        (36, "Add exhaustive default to formatExecutionPreferenceProblems switch"),
        (41, "Errors in conversation logging block jam PR ID on hard-fail in draft state"),
        (43, "Execution executor with wrong model fails with ambiguous error"),
    ):
        linear.add_issue(title, number=number, projectId=project.id)
    issue = linear.add_issue(
        "Rate-limit runner endpoints to block unauthenticated DDOS",
        number=44,
        projectId=project.id,
        priority=3,
        description="Open relay routes are getting pounded by unauth'd traffic. Add per-IP rate-limit on "
        "/api/runners/* before the auth check. Cap at 100 req/min. Return 429 with Retry-After header.",
        labels=["backend", "security"],
    )
    linear.add_label(issue, "delego:claude-sonnet-4-5")
    return linear.delegate_issue(issue)
