"""Start a service beside a stage and find out when it really answers."""

from __future__ import annotations

import time
from pathlib import Path

from rlbox.act.poller import Poller
from rlbox.act.processes import Child, RunProcesses
from rlbox.plan.run import ReadyPlan, ServicePlan
from rlbox.values import Command

_PAUSE_S = 0.2
_CONNECT_S = 2.0
_READ_S = 30.0
"""The ready request may be a real one: the first generation of a model on CPU takes longer than a health check."""

READY = "ready"


class RunningService:
    """A started service; `answer` is `ready`, or in a few words what the ready request got last."""

    def __init__(self, plan: ServicePlan, processes: RunProcesses, command: Command, log: Path, stage: str) -> None:
        self.plan = plan
        self.child: Child = processes.start(command, log, stage=stage, part=plan.name)
        self.started = time.monotonic()
        self._poller = Poller(lambda: probe_ready(plan.ready), _PAUSE_S, lambda answer: answer == READY)

    @property
    def answer(self) -> str:
        """What the ready request got last."""
        return self._poller.latest or "no answer yet"

    @property
    def ready(self) -> bool:
        """Whether the service has answered as told."""
        return self._poller.latest == READY

    @property
    def late(self) -> bool:
        """Whether its start limit is over."""
        return time.monotonic() - self.started > self.plan.start_s

    def close(self) -> None:
        """Ask no more whether it is ready."""
        self._poller.close()


def probe_ready(ready: ReadyPlan) -> str:
    """Send the ready request once; return `ready`, or what is wrong in a few words.

    Proxies of the environment are not used: the services are on this machine.
    """
    import httpx  # a third of the supervisor's start; stages without services do not pay for it

    headers = {"content-type": "application/json"} if ready.body else {}
    timeout = httpx.Timeout(_READ_S, connect=_CONNECT_S)
    try:
        with httpx.Client(trust_env=False, timeout=timeout) as client:
            answer = client.request(ready.method, ready.url, content=ready.body or None, headers=headers)
            text = answer.text
    except httpx.ConnectError:
        return "connection refused"
    except httpx.TimeoutException:
        return "no answer in time"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    if answer.status_code != httpx.codes.OK:
        return f"HTTP {answer.status_code}"
    return READY if ready.contains in text else f"HTTP 200 without {ready.contains!r}"
