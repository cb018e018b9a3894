"""The account at vast.ai: offers, and instances made and destroyed.

Source of paths, fields and defaults: vastai 1.9.1 (`vastai/api`), vast-ai/docs api-reference/openapi/yaml.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from rlbox.amounts import exact_duration_text
from rlbox.errors import NodeError, SpecError, TimedOut, WorkFailed
from rlbox.i18n import _
from rlbox.system.http import (
    HttpClient,
    HttpResponse,
    NoResponseError,
    explain_no_response,
    make_tls_context_factory,
    retry,
)
from rlbox.system.network_settings import find_custom_ca_bundle
from rlbox.vast.offers import OfferFilter
from rlbox.vast.request import DEAD_STATES, CreateRequest, Instance, parse_instance, require_rlbox_instances

_POLL_S = 10.0
_SILENT_S = 120.0
_CREATION = "the creation"
_SEARCH = _("rlbox vast search TARGET tells what can be rented now")
SEARCH_PATH = "/api/v0/bundles/"
_KEYS = _("https://cloud.vast.ai/manage-keys/ makes one")
_BUSY = (429, 502, 503, 504)
_RUN_TYPES = {"ssh": "ssh_direc ssh_proxy", "jupyter": "jupyter_direc ssh_direc ssh_proxy"}


def search_offers(needs: OfferFilter) -> list[dict[str, Any]]:
    return list(_ask("the search", "POST", SEARCH_PATH, needs.body()).get("offers") or ())


def create_instance(offer: int, request: CreateRequest) -> int:
    """Accept an offer and return the id of the instance that it becomes.

    The request is sent once: what is not answered may have been carried out, so it is not repeated.
    """
    body = {
        "client_id": "me",
        "image": request.image,
        "disk": request.disk,
        "label": request.label,
        "env": dict(request.env),
        "onstart": request.onstart,
        "cancel_unavail": True,
        "runtype": _RUN_TYPES[request.mode],
        **({"price": request.bid} if request.bid else {}),
    }
    sent = f"rlbox vast ls tells whether there is an instance with the label {request.label} now"
    answer = _ask(_CREATION, "PUT", f"/api/v0/asks/{offer}/", body, sent=sent)
    if not answer.get("success") or not answer.get("new_contract"):
        raise _refused(_CREATION, answer)
    return int(answer["new_contract"])


def list_instances() -> dict[int, Instance]:
    return {one.id: one for one in map(parse_instance, _pages())}


def find_rlbox_instance(instance_id: int) -> Instance:
    """Return an instance that rlbox created; `SpecError` where there is none of that number."""
    return require_rlbox_instances(list_instances(), (instance_id,))[0]


def _pages() -> Iterator[Mapping[str, Any]]:
    asked: dict[str, Any] = {"select_filters": "{}", "order_by": '[{"col": "id", "dir": "asc"}]', "limit": 25}
    while True:
        page = _ask("the list of instances", "GET", f"/api/v1/instances/?{urlencode(asked)}")
        yield from page.get("instances") or ()
        if not page.get("next_token"):
            return
        asked["after_token"] = page["next_token"]


def destroy_instance(instance_id: int) -> None:
    what = f"the end of instance {instance_id}"
    answer = _ask(
        what, "DELETE", f"/api/v0/instances/{instance_id}/", {}, sent="rlbox vast ls tells whether it is still there"
    )
    if not answer.get("success"):
        raise _refused(what, answer)


def set_instance_state(instance_id: int, state: Literal["running", "stopped"], *, api_key: str = "") -> None:
    """Ask for an instance to run, or to stop; it keeps its disk. `api_key` is another than the account's."""
    what = f"that instance {instance_id} be {state}"
    answer = _ask(what, "PUT", f"/api/v0/instances/{instance_id}/", {"state": state}, key=api_key)
    if not answer.get("success"):
        raise _refused(what, answer)


def wait_until_running(
    instance_id: int, timeout_s: float, say: Callable[[str], None], *, restarted: bool = False
) -> Instance:
    """Wait until an instance runs and return it; `say` hears each change of its state.

    One that was stopped before (`restarted`) is `exited` until it gets its GPUs back, which others may have meanwhile.

    Raises
    ------
    WorkFailed
        It is gone, or in a state from which it never comes to run.
    TimedOut
        It did not run in time. It is there and costs money in both cases; the message says how to end it.
    """
    end, told = time.monotonic() + timeout_s, ""
    ending = f"rlbox vast destroy {instance_id} --unfetched --yes"  # nothing is on its disk that could be fetched
    if restarted:
        ending = _(
            "rlbox vast start {number} (later), or to lose its disk: rlbox vast destroy {number} --unfetched"
        ).format(number=instance_id)
    while True:
        row = _ask(f"the state of instance {instance_id}", "GET", f"/api/v0/instances/{instance_id}/?owner=me").get(
            "instances"
        )
        if row is None:
            raise WorkFailed(_("instance {number} is gone").format(number=instance_id), next_step=_SEARCH)
        one = parse_instance({"id": instance_id, **row})
        if (state := f"{one.status or 'created'} {one.message}".strip()) != told:
            told = state
            say(f"instance {instance_id}: {state}")
        if one.status == "running":
            return one
        if one.status in DEAD_STATES and not restarted:
            raise WorkFailed(
                _("instance {number} is {status}: {message}").format(
                    number=instance_id, status=one.status, message=one.message or _("no reason given")
                ),
                next_step=ending,
            )
        if time.monotonic() >= end:
            raise TimedOut(
                _("instance {number} did not run within {timeout_s}: {state}").format(
                    number=instance_id, timeout_s=exact_duration_text(timeout_s), state=state
                ),
                next_step=ending,
            )
        time.sleep(_POLL_S)


def find_api_key() -> str | None:
    """Return the API key, from the environment or the file of the platform's own client."""
    if key := os.environ.get("VAST_API_KEY", ""):
        return key
    for name in ("~/.config/vastai/vast_api_key", "~/.vast_api_key"):
        if (path := Path(os.path.expanduser(name))).is_file():
            return path.read_text("utf-8").strip()
    return None


def require_api_key() -> str:
    if key := find_api_key():
        return key
    raise SpecError(
        _("no API key of vast.ai is set"), next_step=_("export VAST_API_KEY=KEY: {keys}").format(keys=_KEYS)
    )


def _platform_url() -> str:
    return os.environ.get("VAST_URL") or "https://console.vast.ai"


class _Busy(Exception):
    """The platform has no time for a request."""

    def __init__(self, answer: HttpResponse) -> None:
        self.answer, self.retry_after = answer, answer.headers.get("Retry-After", "")


def _ask(
    what: str, method: str, path: str, body: Mapping[str, Any] | None = None, *, sent: str = "", key: str = ""
) -> dict[str, Any]:
    """Return the platform's answer to one request, sent again when it fails for a reason that may pass.

    One that may have been carried out is sent once, and `sent` is the step that follows when it is not answered.
    """
    key, url = key or require_api_key(), _platform_url()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = b"" if body is None else json.dumps(body).encode()

    def ask() -> HttpResponse:
        answer = http.request(method, url + path, headers=headers, body=data)
        if answer.status in _BUSY:
            raise _Busy(answer)
        return answer

    with HttpClient(make_tls_context_factory(find_custom_ca_bundle()), idle_timeout_s=_SILENT_S) as http:
        try:
            answer = retry(ask, (NoResponseError, _Busy), attempts=1 if sent else 3)
        except _Busy as busy:
            answer = busy.answer
        except NoResponseError as error:
            step = sent or _("look at the network, and try again")
            raise NodeError(
                _("vast.ai does not answer {what}: {explain_no_response}").format(
                    what=what, explain_no_response=explain_no_response(error)
                ),
                where=url,
                next_step=step,
            ) from error
    if answer.status != 200:
        raise _refused(what, _told(answer), answer.status)
    return _told(answer)


def _told(answer: HttpResponse) -> dict[str, Any]:
    try:
        found = answer.read_json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refused(what: str, answer: Mapping[str, Any], status: int = 200) -> WorkFailed:
    told = (answer.get("msg") or answer.get("detail") or answer.get("error") or "") or _("no reason given")
    gone = _SEARCH if what == _CREATION else _("rlbox vast ls tells what instances there are")
    steps = {
        401: _("the API key is not taken; export VAST_API_KEY=KEY: {keys}").format(keys=_KEYS),
        404: gone,
        410: gone,
    }
    return WorkFailed(
        _("vast.ai refused {what} ({status}): {told}").format(what=what, status=status, told=told),
        next_step=steps.get(status, _("read the reason")),
    )
