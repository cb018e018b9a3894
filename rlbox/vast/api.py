"""The account at vast.ai: offers, and instances made and destroyed.

Source of paths, fields and defaults: vastai 1.9.1 (`vastai/api`), vast-ai/docs api-reference/openapi/yaml.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from rlbox.amounts import exact_duration_text
from rlbox.errors import MachineError, SpecError, TimedOut, WorkFailed
from rlbox.i18n import _
from rlbox.system.http import (
    HttpClient,
    HttpResponse,
    NoFullResponseError,
    create_tls_context,
    describe_response_error,
    retry,
)
from rlbox.system.network_settings import find_env_or_pip_ca_bundle_or_empty
from rlbox.vast.offers import OfferFilter

_POLL_S = 10.0
_SILENT_S = 120.0
_CREATION = "the creation"
_SEARCH = _("rlbox vast search TARGET tells what can be rented now")
_KEYS = "https://cloud.vast.ai/manage-keys/"
_BUSY = (429, 502, 503, 504)
_RUN_TYPES = {"ssh": "ssh_direc ssh_proxy", "jupyter": "jupyter_direc ssh_direc ssh_proxy"}
_DEAD_STATES = frozenset({"exited", "unknown", "offline"})
"""States from which an instance never comes to run. Source: vast-ai/docs, instance states."""


LABEL_PREFIX = "rlbox-"
"""What the label of every instance begins with that rlbox created; it destroys no other."""


@dataclass(frozen=True, kw_only=True)
class InstanceCreateRequest:
    """What creates an instance. `env` is the platform's object (variables, ports), `disk` in GB."""

    target: str
    image: str
    disk: float
    label: str
    env: dict[str, str]
    onstart: str
    mode: Literal["ssh", "jupyter"]


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance as the platform tells of it; `status` is `created` before it has one, `price` dollars an hour.

    `intended_status` is the state that somebody asked for, `host` and `port` where its sshd is reached.
    """

    id: int
    label: str
    status: str
    message: str
    price: float
    intended_status: str
    host: str
    port: int

    @property
    def target_name_if_rlbox_made(self) -> str:
        return self.label.removeprefix(LABEL_PREFIX).partition(" ")[0]

    @property
    def ssh_command_or_empty(self) -> str:
        """How a person reaches it; empty while it has no address."""
        return f"ssh -p {self.port} root@{self.host}" if self.host and self.port else ""

    @property
    def is_rlbox_made(self) -> bool:
        return self.label.startswith(LABEL_PREFIX)


def _parse_instance(row: Mapping[str, Any]) -> Instance:
    return Instance(
        id=int(row["id"]),
        label=str(row.get("label") or ""),
        status=str(row.get("actual_status") or "created"),
        message=str(row.get("status_msg") or "").strip(),
        price=float(row.get("dph_total") or 0.0),
        intended_status=str(row.get("intended_status") or ""),
        host=str(row.get("ssh_host") or ""),
        port=int(row.get("ssh_port") or 0),
    )


def search_raw_offers(offer_filter: OfferFilter) -> list[dict[str, Any]]:
    return list(_ask("the search", "POST", "/api/v0/bundles/", offer_filter.to_search_body()).get("offers") or ())


def create_instance(offer_id: int, request: InstanceCreateRequest) -> int:
    """Accept an offer and return the id of the instance that it becomes.

    The request is sent once: what is not answered may have been carried out, so it is not repeated.
    """
    body = {
        "client_id": "me",
        "image": request.image,
        "disk": request.disk,
        "label": request.label,
        "env": request.env,
        "onstart": request.onstart,
        "cancel_unavail": True,
        "runtype": _RUN_TYPES[request.mode],
    }
    step = f"rlbox vast ls tells whether there is an instance with the label {request.label} now"
    answer = _ask(_CREATION, "PUT", f"/api/v0/asks/{offer_id}/", body, step_if_unanswered=step)
    if not answer.get("new_contract"):
        raise _refused(_CREATION, answer)
    return int(answer["new_contract"])


def list_instances() -> list[Instance]:
    rows: list[Mapping[str, Any]] = []
    query: dict[str, Any] = {"select_filters": "{}", "order_by": '[{"col": "id", "dir": "asc"}]', "limit": 25}
    while True:
        page = _ask("the list of instances", "GET", f"/api/v1/instances/?{urlencode(query)}")
        rows += page.get("instances") or ()
        if not page.get("next_token"):
            return [_parse_instance(row) for row in rows]
        query["after_token"] = page["next_token"]


def require_rlbox_instances(ids: Sequence[int]) -> list[Instance]:
    instances = {instance.id: instance for instance in list_instances()}
    own = {number: instance for number, instance in instances.items() if instance.is_rlbox_made}
    problems = [
        f"instance {number} (label {instances[number].label!r}) was not created by rlbox"
        if number in instances
        else f"there is no instance {number} of this account"
        for number in ids
        if number not in own
    ]
    if problems:
        raise SpecError(
            "\n  ".join(problems),
            where="the account's instances",
            next_step=_("instances of rlbox: {own}; for others there is the platform's own client, vastai").format(
                own=", ".join(map(str, own)) or _("none")
            ),
        )
    return [own[number] for number in ids]


def destroy_instance(instance_id: int) -> None:
    step = "rlbox vast ls tells whether it is still there"
    _ask(
        f"the end of instance {instance_id}", "DELETE", f"/api/v0/instances/{instance_id}/", {}, step_if_unanswered=step
    )


def request_instance_state(instance_id: int, state: Literal["running", "stopped"], *, api_key: str = "") -> None:
    """Ask for an instance to run, or to stop; it keeps its disk. `api_key` is another than the account's."""
    what = f"that instance {instance_id} be {state}"
    _ask(what, "PUT", f"/api/v0/instances/{instance_id}/", {"state": state}, api_key=api_key)


def wait_until_instance_runs(
    instance_id: int, timeout_s: float, print_state: Callable[[str], None], *, restarted: bool = False
) -> Instance:
    """Wait until an instance runs and return it; `print_state` hears each change of its state.

    One that was stopped before (`restarted`) is `exited` until it gets its GPUs back, which others may have meanwhile.
    An error leaves it there and billed; its message says how to end it.
    """
    end, last_state = time.monotonic() + timeout_s, ""
    ending = f"rlbox vast destroy {instance_id} --unfetched --yes"  # nothing is on its disk that could be fetched
    if restarted:
        ending = _(
            "rlbox vast start {number} (later), or to lose its disk: rlbox vast destroy {number} --unfetched"
        ).format(number=instance_id)
    while True:
        what = _("the state of instance {number}").format(number=instance_id)
        path = f"/api/v0/instances/{instance_id}/?owner=me"
        row = _ask(what, "GET", path).get("instances")
        if row is None:
            raise WorkFailed(_("instance {number} is gone").format(number=instance_id), next_step=_SEARCH)
        instance = _parse_instance({"id": instance_id, **row})
        state = f"{instance.status} {instance.message}".strip()
        if state != last_state:
            last_state = state
            print_state(_("instance {number}: {state}").format(number=instance_id, state=state))
        if instance.status == "running":
            return instance
        if instance.status in _DEAD_STATES and not restarted:
            raise WorkFailed(
                _("instance {number} is {state}").format(number=instance_id, state=state), next_step=ending
            )
        if time.monotonic() >= end:
            raise TimedOut(
                _("instance {number} did not run within {timeout_s}: {state}").format(
                    number=instance_id, timeout_s=exact_duration_text(timeout_s), state=state
                ),
                next_step=ending,
            )
        time.sleep(_POLL_S)


def require_api_key() -> str:
    """Return the API key, from the environment or the file of the platform's own client."""
    if key := os.environ.get("VAST_API_KEY", ""):
        return key
    for name in ("~/.config/vastai/vast_api_key", "~/.vast_api_key"):
        if (path := Path(os.path.expanduser(name))).is_file():
            return path.read_text("utf-8").strip()
    step = _("create a key at {keys}, then: export VAST_API_KEY=KEY").format(keys=_KEYS)
    raise SpecError(_("no API key of vast.ai is set"), next_step=step)


class _Busy(Exception):
    def __init__(self, answer: HttpResponse) -> None:
        self.answer, self.retry_after = answer, answer.headers.get("Retry-After", "")


def _ask(
    what: str,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    step_if_unanswered: str = "",
    api_key: str = "",
) -> dict[str, Any]:
    """Return the platform's answer to one request, sent again when it fails for a reason that may pass.

    One that may have been carried out is sent once: it has a `step_if_unanswered`.
    """
    url = os.environ.get("VAST_URL") or "https://console.vast.ai"
    headers = {"Authorization": f"Bearer {api_key or require_api_key()}", "Content-Type": "application/json"}
    data = b"" if body is None else json.dumps(body).encode()

    def ask() -> HttpResponse:
        answer = http.request(method, url + path, headers=headers, body=data)
        if answer.status in _BUSY:
            raise _Busy(answer)
        return answer

    with HttpClient(
        partial(create_tls_context, find_env_or_pip_ca_bundle_or_empty()), idle_timeout_s=_SILENT_S
    ) as http:
        try:
            answer = retry(ask, (NoFullResponseError, _Busy), attempts=1 if step_if_unanswered else 3)
        except _Busy as busy:
            answer = busy.answer
        except NoFullResponseError as error:
            raise MachineError(
                _("vast.ai does not answer {what}: {explain_no_response}").format(
                    what=what, explain_no_response=describe_response_error(error)
                ),
                where=url,
                next_step=step_if_unanswered or _("look at the network, and try again"),
            ) from error
    try:
        told = answer.read_json()
    except ValueError:
        told = {}
    told = told if isinstance(told, dict) else {}
    if answer.status != 200 or told.get("success") is False:
        raise _refused(what, told, answer.status)
    return told


def _refused(what: str, answer: Mapping[str, Any], status: int = 200) -> WorkFailed:
    reason = (answer.get("msg") or answer.get("detail") or answer.get("error") or "") or _("no reason given")
    gone = _SEARCH if what == _CREATION else _("rlbox vast ls tells what instances there are")
    steps = {
        401: _("vast.ai rejected the API key; create one at {keys}, then: export VAST_API_KEY=KEY").format(keys=_KEYS),
        404: gone,
        410: gone,
    }
    return WorkFailed(
        _("vast.ai refused {what} ({status}): {told}").format(what=what, status=status, told=reason),
        next_step=steps.get(status, _("read the reason")),
    )
