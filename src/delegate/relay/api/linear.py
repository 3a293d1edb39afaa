"""The endpoints for the connection to Linear; `relay/linear/webhook.py` receives its webhooks."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from delegate.relay.auth import caller_of, require_access
from delegate.relay.linear import connecting
from delegate.relay.linear.link import LinearLink
from delegate.relay.problems import PROBLEMS
from delegate.relay.requests import JsonBody, check_query
from delegate.relay.views import respond
from delegate.wire.linear import (
    LinearActionRequest,
    LinearConnectRequest,
    LinearLabelsRequest,
    LinearLabelsView,
    LinearMapRequest,
    LinearView,
)

router = APIRouter(prefix="/api", dependencies=[Depends(require_access), Depends(check_query)], responses=PROBLEMS)
ActionBody = Annotated[LinearActionRequest, Depends(JsonBody(LinearActionRequest))]
ConnectBody = Annotated[LinearConnectRequest, Depends(JsonBody(LinearConnectRequest))]
MapBody = Annotated[LinearMapRequest, Depends(JsonBody(LinearMapRequest))]
LabelsBody = Annotated[LinearLabelsRequest, Depends(JsonBody(LinearLabelsRequest))]


def link_of(request: Request) -> LinearLink:
    return cast(LinearLink, request.app.state.linear)  # FastAPI's state is untyped


@router.get("/linear", response_model=LinearView)
async def show_linear(request: Request) -> Response:
    return respond(await connecting.describe_connection(link_of(request)))


@router.post("/linear/connect", response_model=LinearView)
async def connect_linear(request: Request, body: ConnectBody) -> Response:
    """Checks the credential with Linear before it is stored."""
    link = link_of(request)
    await connecting.connect(link, body, caller_of(request).actor)
    return respond(await connecting.describe_connection(link))


@router.post("/linear/disconnect", response_model=LinearView)
async def disconnect_linear(request: Request, _body: ActionBody) -> Response:
    link = link_of(request)
    await connecting.disconnect(link, caller_of(request).actor)
    return respond(await connecting.describe_connection(link))


@router.post("/linear/test", response_model=LinearView)
async def check_linear(request: Request, _body: ActionBody) -> Response:
    """Asks Linear whether the credential is valid."""
    link = link_of(request)
    await connecting.check_connection(link)
    return respond(await connecting.describe_connection(link))


@router.post("/linear/map", response_model=LinearView)
async def map_linear(request: Request, body: MapBody) -> Response:
    link = link_of(request)
    await connecting.change_map(link, body, caller_of(request).actor)
    return respond(await connecting.describe_connection(link))


@router.post("/linear/labels", response_model=LinearLabelsView)
async def label_linear(request: Request, body: LabelsBody) -> Response:
    return respond(await connecting.arrange_labels(link_of(request), create=body.create))
