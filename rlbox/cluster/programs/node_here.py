"""Ray on a node without an engine: processes of this user, each start of them a life with a record on the data disk."""

from __future__ import annotations

import binascii
import contextlib
import errno
import os
import re
from typing import TYPE_CHECKING

from rlbox.cluster.programs import node_files, node_procs, node_run
from rlbox.cluster.programs.node_wire import NodeFailed, from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlbox.cluster.programs.node_procs import Life
    from rlbox.cluster.programs.node_wire import Row

KIND = "here-"
"""How the name of a life begins; that of a container is its id."""
CALL_LABEL = "rlbox.call"
RECORD, LOG, RETIRED = "record.json", "log", "retired"
_OWN = "/opt/rlbox"
_TEMP = "/tmp/ray"  # noqa: S108 - where Ray of every version, and of every node, looks
_SESSION = re.compile(r"session_[0-9][0-9A-Za-z_-]{0,80}")
_KILLED = 137
_NO_ENV = (
    "neither the first process of its container nor the shell has the image's environment: let a shell be the first "
    "process, and sshd its child"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.I)


# ---- the place


def find_place(target: str) -> Row | None:
    """Return where a target was brought to this node, by `rlbox apply` or as an image of it; None where it was not."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    own = os.path.join(cache, "rlbox", "places", target)
    told = _json(f"{own}.json").get("prefix")
    for prefix in [str(told)] * bool(told) + [own, ""]:
        record = _json(f"{prefix}{_OWN}/share/applied.json")
        if record.get("target") == target:
            whole = record.get("state") == "laid"
            return _place(prefix, str(record.get("lock", "")), data=str(record.get("data", "")), whole=whole)
    lock = _bytes(f"{_OWN}/share/lock.json")
    if lock and not os.path.exists(f"{_OWN}/share/applied.json") and _parsed(lock).get("target") == target:
        import hashlib  # it loads OpenSSL, which hardly any question needs

        return _place("", hashlib.sha256(lock).hexdigest(), image=True)
    return None


def _place(prefix: str, lock: str, data: str = "", whole: bool = True, image: bool = False) -> Row:
    return {"own": f"{prefix}{_OWN}", "lock": lock, "data": data, "whole": whole, "image": image}


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _parsed(text: bytes) -> Row:
    try:
        row = from_json(text)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _json(path: str) -> Row:
    return _parsed(_bytes(path))


def environment(row: Row) -> dict[str, str]:
    """Return what programs of a place are started with: what the shell says of machine and user, and what is told.

    In a container of the target's own image its first process has the image's ENV; secrets of a platform stay out.
    `NodeFailed` where neither that nor the shell has it.
    """
    shell = dict(os.environ)
    if not os.path.exists(f"{row['own']}/share/applied.json"):
        first = dict(word.split("=", 1) for word in _bytes("/proc/1/environ").decode().split("\0") if "=" in word)
        told = next((one for one in (first, shell) if "RLBOX_LIMITS" in one), None)
        if told is None:  # sshd, as the first process, writes over its own
            raise NodeFailed(_NO_ENV)
        env = {name: text for name, text in told.items() if not _SECRET.search(name)}
    else:
        names, kinds = tuple(row["names"]), tuple(row["kinds"])
        env = {name: text for name, text in shell.items() if name in names or name.startswith(kinds)}
        env["PATH"] = row["path"]
    for name, text in (("HOME", os.path.expanduser("~")), ("USER", str(os.getuid()))):
        env.setdefault(name, text)
    env.update(row["env"])
    return env


# ---- lives


class Lives:
    """The lives of this user's clusters on one data disk."""

    def __init__(self, disk: str, program: Callable[[], tuple[list[str], bytes]]) -> None:
        self._disk, self._program = disk, program
        self._top = f"clusters/{os.getuid()}"

    def _paths(self) -> Iterable[str]:
        for name in node_files.names(self._disk, self._top):
            for node in node_files.names(self._disk, f"{self._top}/{name}"):
                yield from self.below(f"{self._top}/{name}/{node}")

    def below(self, folder: str) -> list[str]:
        """Return where the lives of a cluster's folder are."""
        return [f"{folder}/here/{life}" for life in node_files.names(self._disk, f"{folder}/here")]

    def _read(self, path: str) -> Life | None:
        row = _parsed(node_files.read(self._disk, f"{path}/{RECORD}").encode())
        numbers = ("pid", "pid_born", "child", "child_born", "exit_code")
        texts = ("id", "name", "image", "boot", "group", "started", "finished", "temp", "session", "said")
        sound = all(isinstance(row.get(key), int) for key in numbers)
        sound = sound and all(isinstance(row.get(key), str) for key in texts) and isinstance(row.get("labels"), dict)
        return dict(row, path=path) if sound and row["id"] == os.path.basename(path) else None

    def all(self) -> list[Life]:
        """Return those that were not replaced."""
        found = [self._read(path) for path in self._paths()]
        return [life for life in found if life and not self._retired(life)]

    def _retired(self, life: Life) -> bool:
        return RETIRED in node_files.names(self._disk, str(life["path"]))

    def of(self, name: str) -> Life:
        """Return a life by its name; `NodeFailed` where there is none."""
        for path in self._paths():
            if os.path.basename(path) == name:
                life = self._read(path)
                if life:
                    return life
        raise NodeFailed("Ray's processes have no record here any more")

    def start(self, row: Row) -> Row:
        """Start Ray behind a keeper, which writes the record; return the life's name."""
        life = KIND + binascii.hexlify(os.urandom(6)).decode()
        path = f"{row['folder']}/here/{life}"
        node_files.write(self._disk, f"{path}/{LOG}", "", 0o600, [])
        env = dict(environment(row), **{node_procs.MARK: life, "TMPDIR": scratch(life), "RAY_TMPDIR": "/tmp"})  # noqa: S108
        keys = ("name", "image", "labels", "words")
        told = dict({key: row[key] for key in keys}, id=life, disk=self._disk, path=path, env=env)
        words, program = self._program()
        said = _parsed(node_run.first_line(words, program + to_json({"keep": told}).encode() + b"\n"))
        if not said.get("kept"):
            node_files.remove(self._disk, path)
            raise NodeFailed(str(said.get("failed") or "the keeper of Ray's processes did not start"))
        return {"life": life}

    def rows(self) -> list[Row]:
        """Return the lives as containers are told: name, state, exit code, labels."""
        return list(map(_told, self.all()))

    def end(self, names: Iterable[str], grace: float) -> None:
        """End lives; what their Ray wrote stays."""
        node_procs.end_lives([self.of(name) for name in names], grace)

    def end_call(self, call: str) -> None:
        """End what one call started, and forget it."""
        names = [str(life["id"]) for life in self.all() if life["labels"].get(CALL_LABEL) == call]
        self.end(names, 0)
        for name in names:
            self._forget(str(self.of(name)["path"]))

    def retire(self, names: Iterable[str]) -> None:
        """Have lives that ended no longer count; what their Ray wrote stays until the cluster goes."""
        for name in names:
            node_files.write(self._disk, f"{self.of(name)['path']}/{RETIRED}", "", 0o600, [])

    def clear(self, folder: str) -> int:
        """Forget all lives of a cluster's folder, of which none goes on; return how many sessions of Ray went."""
        paths = self.below(folder)
        lives = [self._read(path) or node_procs.unrecorded(os.path.basename(path)) for path in paths]
        node_procs.end_lives(lives, 0)
        return sum(self._forget(path) for path in paths)

    def _forget(self, path: str) -> bool:
        life = self._read(path)
        node_files.remove(self._disk, path)
        node_files.remove(*scratch(os.path.basename(path)).rsplit("/", 1))
        return life is not None and forget_session(str(life["temp"]), str(life["session"]))

    def output(self, name: str, lines: int) -> str:
        """Return the last lines that Ray's own start wrote."""
        text = node_files.read(self._disk, f"{self.of(name)['path']}/{LOG}")
        return "\n".join(text.splitlines()[-lines:])

    def logs(self, name: str) -> tuple[str, list[str]]:
        """Return the folder of Ray's logs: one that is there, and the way on from it."""
        life = self.of(name)
        parts = [life["session"], "logs"] if _SESSION.fullmatch(life["session"]) else ["none"]
        return os.path.realpath(life["temp"]), parts


def _told(life: Life) -> Row:
    there = node_procs.is_there(life, "child") or node_procs.is_there(life, "pid")  # who writes down how it ended
    ended = bool(life["finished"]) or not there
    row = {key: life[key] for key in ("id", "name", "image", "labels", "pid", "started", "finished", "said")}
    code = life["exit_code"] if life["finished"] else _KILLED
    return dict(row, status="exited" if ended else "running", exit_code=code if ended else 0, oom=False)


# ---- folders of Ray's programs


def scratch(life: str) -> str:
    """Return the folder for what programs of a life leave behind in the temporary folder: it goes with the life."""
    return f"/tmp/{node_procs.group_name(life)}"  # noqa: S108 - short, for sockets are in it; its name is nobody's to guess


def make_temp(disk: str) -> str:
    """Have Ray's folder lie on the data disk, where there is none yet; return it."""
    if not os.path.lexists(_TEMP):
        name = binascii.hexlify(os.urandom(4)).decode()
        node_files.write(disk, f"ray/{name}/.cluster", "", 0o600, [])
        with contextlib.suppress(OSError):
            os.symlink(os.path.join(disk, "ray", name), _TEMP)
    if not os.access(_TEMP, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"{_TEMP} is another user's")
    return _TEMP


def forget_session(temp: str, session: str) -> bool:
    """Remove a session of Ray's, and the folder of sessions if a cluster made it and this was the last."""
    real = os.path.realpath(temp)
    gone = bool(_SESSION.fullmatch(session)) and node_files.remove(
        os.path.dirname(real), f"{os.path.basename(real)}/{session}"
    )
    with contextlib.suppress(OSError):
        latest = os.path.join(real, "session_latest")
        if os.path.basename(os.readlink(latest)) == session:
            os.unlink(latest)
    with contextlib.suppress(OSError):
        names = set(os.listdir(real))
        if ".cluster" in names and not any(name.startswith("session_2") for name in names):
            os.unlink(temp)
            node_files.remove(os.path.dirname(os.path.dirname(real)), f"ray/{os.path.basename(real)}")
    return gone
