"""Bodies of requests: read once, parsed strictly."""

from __future__ import annotations

from typing import Generic, TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from delegate.errors import MalformedBody, UnsupportedMedia
from delegate.relay.problems import fault
from delegate.wire.basics import Wire

M = TypeVar("M", bound=Wire)


class JsonBody(Generic[M]):
    """A dependency that gives the body as `model`.

    FastAPI would make Python objects of it first; what JSON says about types would be lost on the way ("1" for 1,
    1 for a moment in 1970), and half of the time with it. `describe` tells the API's document what is taken here.
    """

    def __init__(self, model: type[M]) -> None:
        self.model = model

    async def __call__(self, request: Request) -> M:
        check_kind(request)
        try:
            return self.model.model_validate_json(await request.body(), strict=True)
        except ValidationError as error:
            # The input is not echoed, and a body can have a hundred thousand faults: the first is told.
            raise fault(error.errors(include_url=False, include_input=False)[0], self.model) from None
        except ClientDisconnect as error:
            raise MalformedBody(why="it ended too early") from error


def check_kind(request: Request) -> None:
    """A form of a web page can send anything but this kind without asking first."""
    given = ",".join(request.headers.getlist("content-type")).partition(";")[0].strip().lower()
    if given != "application/json":
        raise UnsupportedMedia(given=given or "nothing")
