"""How the checks of `rlbox doctor` are run: each in a thread of its own, until a deadline."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping

from rlbox.errors import RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _

Check = Callable[[], Iterable[Finding]]


class CheckThreads:
    """Checks that run in threads: daemons, since one that hangs in the kernel must not keep rlbox from ending."""

    def __init__(self, checks: Mapping[str, Check], monotonic_deadline: float) -> None:
        self._deadline = monotonic_deadline
        self._findings: dict[str, list[Finding]] = {name: [] for name in checks}
        self._ended: dict[str, str] = {}  # to why a check did not come to its end, empty for one that did
        self._threads = {
            name: threading.Thread(target=self._run, args=(name, check), daemon=True) for name, check in checks.items()
        }
        for thread in self._threads.values():
            thread.start()

    def wait_and_get_findings_so_far(self) -> dict[str, tuple[Finding, ...]]:
        for thread in self._threads.values():
            thread.join(max(self._deadline - time.monotonic(), 0.01))
        return {name: tuple(findings) for name, findings in self._findings.items()}

    def describe_unfinished_or_failed(self) -> Iterator[str]:
        for name in self._threads:
            if reason := self._ended.get(name, _("not done in time")):
                yield f"{name}: {reason}"

    def is_running(self, name: str) -> bool:
        """Tell whether a check has not ended; threading forgets it where Ctrl-C cuts a `join`."""
        return name not in self._ended

    def _run(self, name: str, check: Check) -> None:
        reason = ""
        try:
            for finding in check():
                self._findings[name].append(finding)
        except RlboxError as error:
            reason = error.what
        except Exception as error:  # a check that fails says nothing of the machine, and must not hide the others
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({where.name})"
        finally:
            self._ended[name] = reason
