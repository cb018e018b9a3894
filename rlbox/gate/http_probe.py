"""Send a request that shows whether something does its work, and look at the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rlbox.gate.answers import judge_answer
from rlbox.job.gate_plan import ProbePlan, ReadyPlan
from rlbox.system.http import NoResponseError, create_loopback_client, explain_no_response
from rlbox.system.poller import Poller

_READ_S = 30.0
"""The request may be a real one: the first generation of a model on CPU takes longer than a health check."""
_LIMIT = 4 << 20
"""Bytes of an answer that are looked at."""
_PAUSE_S = 0.2
_NO_ANSWER = "no answer in time"
REFUSED = "connection refused"
"""What is said of a server that takes no connection."""


def probe_http(request: ReadyPlan, limit_s: float = _READ_S, headers: Mapping[str, str] | None = None) -> str:
    """Send the request once; return what is wrong in a few words, or an empty text when the answer is as told.

    Proxies of the environment are not used: the services are on this machine. A server that drips its answer is cut
    off after `limit_s`, too.
    """
    until = time.monotonic() + limit_s
    told = {**({"content-type": "application/json"} if request.body else {}), **(headers or {})}
    body = bytearray()
    try:
        with (
            create_loopback_client(limit_s) as http,
            http.ask(request.method, request.url, body=request.body.encode(), headers=told) as answer,
        ):
            for part in answer.blocks(decode=True):
                body += part
                if len(body) > _LIMIT:
                    break
                if time.monotonic() > until:
                    return _NO_ANSWER
    except NoResponseError as error:
        if error.kind in ("late", "silent"):
            return _NO_ANSWER
        return REFUSED if error.kind == "unreached" else explain_no_response(error)
    return judge_answer(request, answer.status, body.decode("utf-8", "replace"))


def await_answer(probe: ProbePlan, on_pause: Callable[[], None]) -> str:
    """Send the request until the answer is as told; return what is wrong with the last one when time is up.

    `on_pause` is called again and again meanwhile and waits a moment; what it raises ends the wait.
    """
    until = time.monotonic() + probe.within_s
    poller = Poller(lambda: probe_http(probe), _PAUSE_S, lambda problem: not problem)
    try:
        while poller.latest != "" and time.monotonic() < until:
            on_pause()
    finally:
        poller.close()
    return _NO_ANSWER if poller.latest is None else poller.latest
