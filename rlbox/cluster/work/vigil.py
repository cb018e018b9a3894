"""Watch over the nodes of a cluster while a run is on it: what their logs say and what happens to them is evidence."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rlbox.cluster.merge import LogLine, merged
from rlbox.cluster.reach.link import NodeLink
from rlbox.cluster.story import StandingCluster, Story
from rlbox.cluster.survey import Survey
from rlbox.cluster.work.logs import EVERYTHING, LogClocks, masked, node_parts, start_logs
from rlbox.cluster.work.watch import WatchedNodes
from rlbox.errors import RlboxError
from rlbox.findings import Finding
from rlbox.foreign import parse_json
from rlbox.secrets.masks import SecretMasker

LINES_FILE, STATUS_FILE = "nodes.txt", "nodes.json"
_KEPT, _MOST = 1000, 1 << 16
"""Lines of each log that are kept, and bytes of each that are read of what was before."""
_CHATTER = re.compile(r"\[\d{4}-\d\d-\d\d [\d:,]+ D ")
"""Lines of Ray's own for who debugs it: on that level it writes hundreds in a second."""
_LAST_S = 1.5


class Vigil:
    """The last lines of every node, those too that answer no more, and what is told of nodes while the block runs."""

    def __init__(self, story: Story, survey: Survey, standing: StandingCluster, masks: SecretMasker) -> None:
        self._story, self._standing, self._masks = story, standing, masks
        self._began = time.time()
        self._lines: dict[tuple[str, str], deque[LogLine]] = {}
        nodes = [name for name in story.fleet.links if name in standing.containers]
        goings = {name: start_logs(story, standing, name, EVERYTHING, follow=True, most=_MOST) for name in nodes}
        self._parts, self._clocks = node_parts(goings), LogClocks(survey)
        threading.Thread(target=self._hear, name="logs of nodes", daemon=True).start()
        self._nodes = WatchedNodes(story, standing, survey.offsets)

    def _hear(self) -> None:
        while True:
            name, part = self._parts.get()
            for line in self._clocks.lines(name, part) if isinstance(part, dict) else ():
                if not _CHATTER.match(line.text):
                    self._lines.setdefault((name, line.file), deque(maxlen=_KEPT)).append(line)

    def close(self) -> None:
        """Watch no more."""
        self._nodes.close()

    def findings(self) -> tuple[Finding, ...]:
        """Return what happened to nodes, the first first, and say what was not said."""
        return self._nodes.findings()

    def evidence(self) -> Mapping[str, str]:
        """Return the files of evidence: the nodes' lines since the watch began, in one order, and what happened."""
        time.sleep(_LAST_S)  # what was written as it failed is on its way
        kept = [line for log in list(self._lines.values()) for line in list(log) if line.at >= self._began]
        found, links = self.findings(), self._story.fleet.links
        nodes = {name: {"answers": name in links and links[name].heard} for name in self._standing.containers}
        status = {"schema": 1, "failures": [one.as_json() for one in found], "nodes": nodes}
        text = "".join(masked(self._masks, line).shown() + "\n" for line in merged(kept))
        return {LINES_FILE: text, STATUS_FILE: json.dumps(status, indent=1, ensure_ascii=False) + "\n"}


@contextmanager
def vigil(story: Story, survey: Survey, standing: StandingCluster, masks: SecretMasker) -> Iterator[Vigil]:
    """Yield the watch over the nodes of a cluster, which ends with the block."""
    found = Vigil(story, survey, standing, masks)
    try:
        yield found
    finally:
        found.close()


def evidence_folder(head: NodeLink, run: str) -> str:
    """Return the folder, below the head's data disk, of the evidence of the stage that failed; nothing without one.

    `run` may be the beginning of its name that no other run has.
    """
    disk = head.wish.data
    with contextlib.suppress(RlboxError, ValueError, LookupError, TypeError, AttributeError):
        names = head.ask("names", disk=disk, path="runs")["names"]
        (name,) = [run] if run in names else [name for name in names if name.startswith(run)]
        record = parse_json(str(head.ask("read", disk=disk, path=f"runs/{name}/run.json")["text"]))
        (stage, *_) = [stage for stage in record["stages"] if stage.get("state") == "failed"]
        return f"runs/{name}/{stage['directory']}/evidence"
    return ""


def lay(head: NodeLink, folder: str, files: Mapping[str, str]) -> None:
    """Write files into a folder of the head's data disk; `NodeError` where that fails."""
    owner = [int(head.facts["uid"]), int(head.facts["gid"])]
    for name, text in files.items():
        head.ask("write", disk=head.wish.data, path=f"{folder}/{name}", text=text, mode=0o600, owner=owner)
