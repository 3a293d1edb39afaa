"""The endpoints that make a machine a runner: a one-time token, and its exchange."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from delegate import __version__
from delegate.model import RunnerAgent
from delegate.placement import policy_of
from delegate.queue.fleet import MachineFacts, create_pairing_token, pair, person_name
from delegate.relay.auth import bearer_token, caller_of, require_access
from delegate.relay.problems import PROBLEMS
from delegate.relay.requests import JsonBody, check_query, relay_of
from delegate.relay.views import respond
from delegate.relay.wheel import served_wheel
from delegate.tokens import PAIRING_PREFIX, RUNNER_PREFIX, hash_token, token_for_request
from delegate.wire.runners import (
    PairExchangeRequest,
    PairingTokenRequest,
    PairingTokenResponse,
    PairRequest,
    PairResponse,
)

router = APIRouter(prefix="/api", dependencies=[Depends(check_query)], responses=PROBLEMS)
PairingTokenBody = Annotated[PairingTokenRequest, Depends(JsonBody(PairingTokenRequest))]
PairBody = Annotated[PairExchangeRequest, Depends(JsonBody(PairExchangeRequest))]


@router.post(
    "/pairing-tokens", status_code=201, dependencies=[Depends(require_access)], response_model=PairingTokenResponse
)
async def make_pairing_token(request: Request, body: PairingTokenBody) -> Response:
    relay = relay_of(request)
    by = caller_of(request).actor
    token = token_for_request(PAIRING_PREFIX, relay.token_hash, body.request_key, by.name, body.name)
    created = await create_pairing_token(relay.database, body.name, hash_token(token), by=by, now=relay.now())
    url = relay.exposure.public_url or str(request.base_url).rstrip("/")
    wheel = await to_thread.run_sync(served_wheel)
    rest = f"delegate runner pair --relay-url {url} --pairing-token {token}"
    return respond(
        PairingTokenResponse(
            pairing_token=token,
            name=created.name,
            expires_at=created.expires_at,
            command=rest,
            install_command=f"uvx --from '{url}{wheel.path}#sha256={wheel.sha256}' {rest}",
        ),
        201,
    )


@router.post("/runners/pair", status_code=201, dependencies=[Depends(require_access)], response_model=PairResponse)
async def pair_machine(request: Request, body: PairBody) -> Response:
    """Exchanges a pairing token for the token of a new runner, once."""
    relay, pairing_hash = relay_of(request), hash_token(bearer_token(request))
    token = token_for_request(RUNNER_PREFIX, relay.token_hash, body.request_key, pairing_hash)
    paired = await pair(relay.database, pairing_hash, machine_facts(body), hash_token(token), relay.now())
    by = await relay.database.read(lambda connection: person_name(connection, paired.paired_by))
    return respond(
        PairResponse(runner_id=paired.id, name=paired.name, token=token, paired_by=by, relay_version=__version__),
        201,
    )


def machine_facts(body: PairRequest) -> MachineFacts:
    return MachineFacts(
        machine=body.machine,
        version=body.version,
        os=body.os,
        architecture=body.architecture,
        agents=tuple(RunnerAgent(**agent.model_dump()) for agent in body.agents),
        policy=policy_of(body.policy.model_dump(by_alias=True)),
        tags=tuple(sorted(set(body.tags))),
        privacy=body.privacy,
        slots=body.slots,
    )
