"""The account at vast.ai, through the platform's public client `vastai`: offers, and instances made and destroyed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlbox.errors import NodeError, SpecError, TimedOut, WorkFailed
from rlbox.vast.request import DEAD, Instance, Request, read_instance

if TYPE_CHECKING:
    from vastai import VastAI

_POLL_S = 10.0
_MOST_OFFERS = 64


def search_offers(query: str, disk: float) -> list[dict[str, Any]]:
    """Return the platform's rows for a query, priced with a disk of `disk` GB, the cheapest first."""
    with _asking("the search"):
        rows = _client().search_offers(query=query, order="dph_total", limit=_MOST_OFFERS, storage=disk)
    return list(rows)


def create_instance(offer: int, request: Request) -> int:
    """Accept an offer and return the id of the instance that it becomes.

    The request is sent once: what is not answered may have been carried out, so it is not repeated.
    """
    mode = {"jupyter": True} if request.mode == "jupyter" else {"ssh": True}
    with _asking("the creation", sent=f"instances with the label {request.label} may exist now: vastai show instances"):
        answer = _client(retry=1).create_instance(
            id=offer,
            image=request.image,
            disk=request.disk,
            label=request.label,
            env=dict(request.env),
            onstart_cmd=request.onstart,
            cancel_unavail=True,
            direct=True,
            **mode,
        )
    if not answer.get("success") or not answer.get("new_contract"):
        raise _refused("the creation", answer)
    return int(answer["new_contract"])


def list_instances() -> dict[int, Instance]:
    """Return the account's instances by id."""
    with _asking("the list of instances"):
        rows = _client().show_instances()
    return {one.id: one for one in map(read_instance, rows)}


def destroy_instance(number: int) -> None:
    """Destroy an instance with everything on its disk."""
    with _asking(f"the end of instance {number}", sent="ask again: vastai show instances"):
        answer = _client(retry=1).destroy_instance(id=number)
    if not answer.get("success"):
        raise _refused(f"the end of instance {number}", answer)


def wait_running(number: int, timeout_s: float, say: Callable[[str], None]) -> Instance:
    """Wait until an instance runs and return it; `say` hears each change of its state.

    Raises
    ------
    WorkFailed
        It is gone, or in a state from which it never comes to run.
    TimedOut
        It did not run in time. It is there and costs money in both cases; the message says how to end it.
    """
    end, told = time.monotonic() + timeout_s, ""
    ending = f"rlbox vast destroy {number} --yes"
    while True:
        with _asking(f"the state of instance {number}"):
            row = _client().show_instance(id=number)
        if row is None:
            raise WorkFailed(f"instance {number} is gone", next_step="search again: the offer may be taken")
        one = read_instance({"id": number, **row})
        if (state := f"{one.status or 'created'} {one.message}".strip()) != told:
            told = state
            say(f"instance {number}: {state}")
        if one.status == "running":
            return one
        if one.status in DEAD:
            raise WorkFailed(f"instance {number} is {one.status}: {one.message or 'no reason given'}", next_step=ending)
        if time.monotonic() >= end:
            raise TimedOut(f"instance {number} did not run within {timeout_s:g} s: {state}", next_step=ending)
        time.sleep(_POLL_S)


def has_key() -> bool:
    """Whether there is a client with an API key, from the environment or its own file."""
    try:
        _client()
    except (NodeError, SpecError):
        return False
    return True


def _client(retry: int = 3) -> VastAI:
    try:
        from vastai import VastAI
    except ImportError as error:
        raise _no_client() from error
    try:
        return VastAI(server_url=os.environ.get("VAST_URL") or None, retry=retry, quiet=True)
    except RuntimeError as error:
        raise SpecError(
            "no API key of vast.ai is set", next_step="export VAST_API_KEY, or vastai set api-key KEY"
        ) from error


def _no_client() -> NodeError:
    return NodeError("the vastai client is not installed", next_step="pip install 'rlbox[vast]'")


@contextmanager
def _asking(what: str, sent: str = "") -> Iterator[None]:
    """Turn the client's failures into rlbox's; `sent` is the next step where a request may have been carried out."""
    try:
        from requests import HTTPError, RequestException
    except ImportError as error:
        raise _no_client() from error
    try:
        yield
    except HTTPError as error:
        raise _refused(what, _answer(error), _status(error)) from error
    except RequestException as error:
        raise NodeError(
            f"vast.ai does not answer {what}: {type(error).__name__}",
            where=os.environ.get("VAST_URL") or "console.vast.ai",
            next_step=sent or "look at the network, and try again",
        ) from None  # the client's own message holds the address with all of its words


def _status(error: Any) -> int:
    return int(error.response.status_code) if error.response is not None else 0


def _answer(error: Any) -> Mapping[str, Any]:
    try:
        found = error.response.json()
    except (AttributeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _refused(what: str, answer: Mapping[str, Any], status: int = 200) -> WorkFailed:
    told = answer.get("msg") or answer.get("detail") or answer.get("error") or "no reason given"
    steps = {
        401: "the API key is not taken: export VAST_API_KEY, or vastai set api-key KEY",
        403: "the API key may not do that: make one with the right permissions",
        404: "the offer is taken: search again",
        410: "the offer is taken: search again",
        429: "too many requests from this address: wait a minute",
    }
    return WorkFailed(f"vast.ai refused {what} ({status}): {told}", next_step=steps.get(status, "read the reason"))
