"""A job on a cluster of hosts that is followed by a command line, whose words are kept with their time."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time

from clusterbox import Hosts

PYTHON = "/opt/venv/bin/python"
WAITS = "import time; print('ready', flush=True); time.sleep(3600)"
LATEST_S = 180.0
"""For how long a report is waited for."""


class Followed:
    """A job of the cluster that waits, followed by a command line whose words on stderr are kept with their time."""

    def __init__(self, hosts: Hosts, *words: str, **env: str) -> None:
        argv = hosts.argv("cluster", "submit", "pair", *words, "--", PYTHON, "-c", WAITS)
        self.process = subprocess.Popen(argv, cwd=hosts.project, env=hosts.env(**env), stdout=-1, stderr=-1, text=True)
        self.lines: list[tuple[float, str]] = []
        self._listens = threading.Thread(target=self._listen, daemon=True)
        self._listens.start()

    def ready(self) -> Followed:
        """Wait until the job has begun."""
        assert self.process.stdout
        while (line := self.process.stdout.readline()) != "ready\n":
            assert line, self.text
        return self

    def _listen(self) -> None:
        for line in self.process.stderr or ():
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in list(self.lines))

    def job(self) -> str:
        """Return the job's name, nothing where it was not told."""
        found = re.search(r"\bjob-[0-9a-f]+\b", self.text)
        return found[0] if found else ""

    def until(self, words: str) -> tuple[float, str]:
        """Return when something was said, and the line; no line where it was not in time."""
        end = time.monotonic() + LATEST_S
        while time.monotonic() < end:
            for at, line in list(self.lines):
                if words in line:
                    return at, line.strip()
            if not self._listens.is_alive() and not any(words in line for _, line in self.lines):
                break
            time.sleep(0.02)
        return time.monotonic(), ""

    def end(self, number: int = signal.SIGINT) -> None:
        """End the command line, if it has not ended; the job goes on."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listens.join(10)
