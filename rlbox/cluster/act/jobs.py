"""Ray's Jobs API of a cluster, asked by the program of its head's node."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlbox.amounts import size_text
from rlbox.cluster.act.reach.link import Link
from rlbox.cluster.job import MOST_BYTES, JobState, JobWish, is_left_out, read_job
from rlbox.cluster.plan import ClusterPlan
from rlbox.cluster.ray import TOKEN_FILE
from rlbox.errors import NodeError, SpecError, WorkFailed
from rlbox.foreign import parse_json

_EPOCH = (1980, 1, 1, 0, 0, 0)
_LARGEST_NAMED = 3


class JobsApi:
    """The jobs of one cluster."""

    def __init__(self, head: Link, plan: ClusterPlan) -> None:
        self._head, self._plan = head, plan

    def _ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, str]:
        token = f"{self._plan.folder(self._head.name)}/{TOKEN_FILE}" if self._plan.closed == "token" else ""
        row = self._head.ask(
            "ray",
            timeout_s=120.0,
            port=self._plan.ports.of("dashboard"),
            method=method,
            path=path,
            headers={"Content-Type": kind},
            body=base64.b64encode(body).decode(),
            disk=self._head.wish.data,
            token=token,
        )
        return int(row["status"]), str(row["text"])

    def state(self, job: str) -> JobState:
        """Return how a job stands."""
        return read_job(*self._ask("GET", f"/api/jobs/{job}"))

    def jobs(self) -> list[dict[str, Any]]:
        """Return what Ray says of all jobs; none where it does not answer."""
        status, text = self._ask("GET", "/api/jobs/")
        try:
            found = parse_json(text) if status == 200 else []
        except ValueError:
            return []
        return [row for row in found if isinstance(row, dict)]

    def submit(self, wish: JobWish, package: str) -> None:
        """Submit a job; `WorkFailed` when Ray does not take it."""
        status, text = self._ask("POST", "/api/jobs/", json.dumps(wish.body(package)).encode())
        if status != 200:
            lines = text.strip().splitlines()
            raise WorkFailed(f"Ray does not take the job: {lines[-1][:300] if lines else f'HTTP {status}'}")

    def stop(self, job: str) -> bool:
        """Ask for the end of a job; return whether it was told to."""
        status, _ = self._ask("POST", f"/api/jobs/{job}/stop", b"{}")
        return status == 200

    def send(self, folder: str, exclude: tuple[str, ...]) -> str:
        """Send a folder, unless the cluster has the very same, and return its address there; empty for none."""
        if not folder:
            return ""
        packed = pack(Path(folder), exclude)
        name = f"_ray_pkg_{hashlib.sha1(packed, usedforsecurity=False).hexdigest()}.zip"
        path = f"/api/packages/gcs/{name}"
        if self._ask("GET", path)[0] != 200:
            status, text = self._ask("PUT", path, packed, "application/octet-stream")
            if status != 200:
                raise WorkFailed(f"the working directory did not get to the cluster: HTTP {status} {text[:200]}")
        return f"gcs://{name}"


def pack(folder: Path, exclude: tuple[str, ...]) -> bytes:
    """Return a folder as a zip, the same for the same files.

    Raises
    ------
    SpecError
        It is no folder, or too large; its largest files are named.
    """
    if not folder.is_dir():
        raise SpecError(f"there is no folder {folder}", next_step="--working-dir DIR, or none")
    files = sorted(_files(folder, exclude))
    sizes = {path: (folder / path).stat().st_size for path in files}
    total = sum(sizes.values())
    buffer = io.BytesIO()
    if total <= 4 * MOST_BYTES:  # what is far too large need not be packed to know it
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                info = zipfile.ZipInfo(path, _EPOCH)
                info.external_attr = ((folder / path).stat().st_mode & 0o777) << 16
                archive.writestr(info, (folder / path).read_bytes(), zipfile.ZIP_DEFLATED)
    if total > 4 * MOST_BYTES or buffer.tell() > MOST_BYTES:
        largest = sorted(files, key=lambda path: -sizes[path])[:_LARGEST_NAMED]
        named = ", ".join(f"{path} ({size_text(sizes[path])})" for path in largest)
        raise SpecError(
            f"the working directory is too large to be sent: {size_text(total)}; its largest files: {named}",
            where=str(folder),
            next_step=f"--exclude '{largest[0]}', or put what is large on the nodes' data disks",
        )
    return buffer.getvalue()


def _files(folder: Path, exclude: tuple[str, ...]) -> Iterator[str]:
    for base, folders, names in os.walk(folder):
        below = os.path.relpath(base, folder)
        prefix = "" if below == "." else f"{below}/"
        folders[:] = [name for name in folders if not is_left_out(f"{prefix}{name}", exclude)]
        for name in names:
            path = f"{prefix}{name}"
            if not is_left_out(path, exclude) and os.path.isfile(os.path.join(base, name)):
                yield path


def session_of(link: Link, container: str, mount: str) -> str:
    """Return the folder of the data disk that Ray writes to on a node; `NodeError` where it says none."""
    name = str(link.ask("session", container=container, mount=mount)["name"])
    if not name:
        raise NodeError(f"Ray on node {link.name} does not say where its logs are", next_step="rlbox cluster doctor")
    return name
