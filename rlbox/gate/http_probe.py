"""Send a request that proves that a service works, and check its answer."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.job.gate import FinalProbe, HttpProbe
from rlbox.job.names import ProblemOrEmpty
from rlbox.system.http import NoFullResponseError, create_loopback_client, describe_response_error
from rlbox.system.poller import Poller

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)\.?")
_BAD_WORDS = frozenset(
    {"error", "fail", "failed", "failure", "unhealthy", "down", "loading", "starting", "unavailable"}
)
_BAD_TEXT = re.compile(
    r"(?i)^\s*(?:<[^>]*>\s*)*(?:\d{3}\s+)?(?:error\b|internal server error|bad gateway|service unavailable|not found"
    r"|unhealthy|exception\b|traceback \(most recent)"
)
_SHOWN = 120


def find_response_problem(probe: HttpProbe, status: int, text: str) -> ProblemOrEmpty:
    """Return what is wrong with an answer; one that says itself that it is an error is: servers send these with 200."""
    if status != probe.status:
        wanted = _("HTTP {status}, not {wanted}") if probe.status != 200 else _("HTTP {status}")
        return wanted.format(status=status, wanted=probe.status)
    if probe.contains not in text:
        return _("HTTP {status} without {text!r}").format(status=status, text=probe.contains)
    try:
        data = parse_untrusted_json(text)
    except ValueError:
        data = None
    if probe.status < 400 and (error := _error_in(data, text)):
        return _("HTTP {status} with an error: {error}").format(status=status, error=error[:_SHOWN])
    return _value_problem(probe, data) if probe.json_path else ""


def _error_in(data: Any, text: str) -> ProblemOrEmpty:
    if data is None:
        return text.strip().splitlines()[0] if _BAD_TEXT.search(text[:500]) else ""
    if not isinstance(data, dict):
        return ""
    for key in ("error", "errors", "exception", "traceback"):
        if data.get(key):
            return json.dumps(data[key], ensure_ascii=False)
    for key in ("status", "state", "object", "type"):
        if str(data.get(key)).lower() in _BAD_WORDS:
            return text.strip()
    refused = any(data.get(key) is False for key in ("ok", "success", "healthy", "ready", "alive"))
    return text.strip() if refused or set(data) == {"detail"} else ""


def _value_problem(request: HttpProbe, data: Any) -> ProblemOrEmpty:
    if data is None:
        return _("the answer is no JSON")
    value: Any = data
    for match in _PART.finditer(request.json_path):
        index, key = match.groups()
        try:
            value = value[int(index)] if index else value[key]
        except (KeyError, IndexError, TypeError):
            return _("the answer has no {path}").format(path=request.json_path)
    wanted = request.equals
    if wanted is not None:
        same = value == wanted and isinstance(value, bool) == isinstance(wanted, bool)
        found, due = json.dumps(value)[:_SHOWN], json.dumps(wanted)
        return "" if same else _("{path} is {found}, not {due}").format(path=request.json_path, found=found, due=due)
    return _("{path} is empty").format(path=request.json_path) if value in (None, "", [], {}) else ""


_READ_S = 30.0
"""The request may be a real one: the first generation of a model on CPU takes longer than a health check."""
_LIMIT = 4 << 20
"""Bytes of an answer that are looked at."""
_PAUSE_S = 0.2
_NO_ANSWER = _("no answer in time")


def request_and_find_problem(
    probe: HttpProbe, total_timeout_s: float = _READ_S, headers: Mapping[str, str] | None = None
) -> ProblemOrEmpty:
    """Send the request once; a server that drips its answer is cut off after `total_timeout_s`, too."""
    until = time.monotonic() + total_timeout_s
    told = {**({"content-type": "application/json"} if probe.body else {}), **(headers or {})}
    body = bytearray()
    try:
        with (
            create_loopback_client(total_timeout_s) as http,
            http.stream(probe.method, probe.url, body=probe.body.encode(), headers=told) as answer,
        ):
            for part in answer.iter_bytes(decode=True):
                body += part
                if len(body) > _LIMIT:
                    break
                if time.monotonic() > until:
                    return _NO_ANSWER
    except NoFullResponseError as error:
        if error.kind == "silent":
            return _NO_ANSWER
        return "connection refused" if error.kind == "unreached" else describe_response_error(error)
    return find_response_problem(probe, answer.status, body.decode("utf-8", "replace"))


def wait_for_expected_response_or_problem(probe: FinalProbe, pause_and_check: Callable[[], None]) -> ProblemOrEmpty:
    until = time.monotonic() + probe.within_s
    poller = Poller(lambda: request_and_find_problem(probe), _PAUSE_S, lambda problem: not problem)
    try:
        while poller.latest != "" and time.monotonic() < until:
            pause_and_check()
    finally:
        poller.request_stop()
    return _NO_ANSWER if poller.latest is None else poller.latest
