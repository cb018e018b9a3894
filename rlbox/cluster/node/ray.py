"""Ray on a machine: its logs, its processes where there is no engine, and the files of a cluster on the data disk."""

import binascii
import contextlib
import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import time

from rlbox.cluster.node.facts import (
    boot_id,
    disk_facts,
    ended_part,
    list_containers,
    read_json,
    read_stat,
    read_text,
)

TEMP = "/tmp/ray"  # noqa: S108
PROCESS_PREFIX = "here-"
_SESSION = re.compile(r"session_2[0-9A-Za-z_-]{0,80}")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.I)
_KILLED = 137
_POLL_S, _KILL_S = 0.3, 10.0


# ---- files below the data disk


def inside(disk, path):
    """Return the path below the data disk; `ValueError` where a link that a job planted leads out of it."""
    full = os.path.join(disk, path)
    parent, top = os.path.realpath(os.path.dirname(full)), os.path.realpath(disk)
    if parent != top and not parent.startswith(top.rstrip("/") + "/"):
        raise ValueError(f"{path} leads out of {disk}")
    return os.path.join(parent, os.path.basename(full))


def make_directory(disk, path, owner):
    """Make a directory and those above it: the first is everybody's, the others are for the owner alone."""
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        full = inside(disk, "/".join(parts[:depth]))
        if not os.path.isdir(full):
            os.mkdir(full, 0o700)
            os.chmod(full, 0o700 if depth > 1 else 0o1777)
            if owner and depth > 1:
                os.chown(full, owner[0], owner[1])


def write_file(request):
    disk, path, owner = request["disk"], request["path"], request.get("owner")
    make_directory(disk, os.path.dirname(path), owner)
    full = inside(disk, path)
    part = f"{full}.{os.getpid()}"
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(request["text"])
        if owner:
            os.fchown(handle, owner[0], owner[1])
    os.rename(part, full)
    return {}


def remove_path(disk, path):
    """Remove a file or a directory with all in it, then the directories above it that are empty."""
    full = inside(disk, path)
    existed = os.path.lexists(full)
    if os.path.isdir(full) and not os.path.islink(full):
        shutil.rmtree(full, ignore_errors=True)
    elif existed:
        os.unlink(full)
    with contextlib.suppress(OSError):
        while os.path.dirname(path):
            path = os.path.dirname(path)
            os.rmdir(inside(disk, path))
    return existed


def remove_empty(disk, path):
    for folder, __, __ in os.walk(os.path.join(disk, path), topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


# ---- Ray as processes of this user: the process that leads their session is recorded, and ended by its number


def process_records(disk):
    """Return the records of this user's clusters on a data disk that were not stopped."""
    found = []
    for folder, __, names in os.walk(os.path.join(disk, "clusters", str(os.getuid()))):
        record = read_json(os.path.join(folder, "record.json")) if "record.json" in names else {}
        if "pid" in record:
            found.append(dict(record, folder=folder))
    return found


def session_members(record):
    """Return the processes of the session that a recorded process leads; none once the machine was started anew."""
    if record["boot"] != boot_id():
        return []
    leader = read_stat(record["pid"])
    if leader and leader[2] != record["born"]:  # its number is another process's now
        return []
    stats = {int(name): read_stat(name) for name in os.listdir("/proc") if name.isdigit()}
    return sorted(pid for pid, row in stats.items() if row and row[1] == record["pid"])


def process_rows(disk):
    """Return Ray's processes as `list_containers` returns containers."""
    rows = []
    for record in process_records(disk):
        running = bool(session_members(record))
        code, __, finished = read_text(os.path.join(record["folder"], "exit")).partition(" ")
        rows.append(
            {
                "id": record["id"],
                "name": record["name"],
                "image": record["image"],
                "labels": record["labels"],
                "status": "running" if running else "exited",
                "exit_code": 0 if running else int(code or _KILLED),
                "finished": "" if running else finished,
                "first_ended_part": "" if running else ended_part(read_text(os.path.join(record["folder"], "log"))),
            }
        )
    return rows


def find_record(disk, name):
    for record in process_records(disk):
        if record["id"] == name:
            return record
    raise ValueError("Ray's processes have no record here any more")


def installed_environment(request):
    """Return what a program of an installed target is started with; in a container of its image, the image's ENV."""
    shell = dict(os.environ)
    if os.path.exists(request["own"] + "/share/applied.json"):
        names, prefixes = request["names"], tuple(request["kinds"])
        env = {name: text for name, text in shell.items() if name in names or name.startswith(prefixes)}
        env["PATH"] = request["path"]
    else:
        rows = read_text("/proc/1/environ").split("\0")
        first = dict(row.split("=", 1) for row in rows if "=" in row)
        found = [env for env in (first, shell) if "RLBOX_LIMITS" in env]
        if not found:  # sshd, as the first process, overwrites its own
            raise ValueError(
                "neither the first process of its container nor the shell has the image's environment: let a shell "
                "be the first process, and sshd its child"
            )
        env = {name: text for name, text in found[0].items() if not _SECRET.search(name)}
    env.setdefault("HOME", os.path.expanduser("~"))
    env.setdefault("USER", str(os.getuid()))
    return dict(env, **request["env"])


_WRAPPER = '"$@"; printf "%s %s" $? "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >exit'


def start_processes(request):
    """Start Ray in a session of its own and record its leader; return the name of the record."""
    name = PROCESS_PREFIX + binascii.hexlify(os.urandom(6)).decode()
    path = "{}/here/{}".format(request["folder"], name)
    make_directory(request["disk"], path, None)
    folder, scratch = inside(request["disk"], path), scratch_directory(name)
    os.mkdir(scratch, 0o700)
    link_temp(request["disk"])
    env = dict(installed_environment(request), TMPDIR=scratch, RAY_TMPDIR=os.path.dirname(TEMP))
    with open(os.path.join(folder, "log"), "ab") as log:
        process = subprocess.Popen(
            ["sh", "-c", _WRAPPER, "sh"] + request["argv"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
    row = read_stat(process.pid)
    process.returncode = 0  # it stays when this script ends
    record = {"name": request["container"], "image": request["image"], "labels": request["labels"]}
    record.update(id=name, pid=process.pid, born=row[2] if row else 0, boot=boot_id())
    write_file({"disk": request["disk"], "path": path + "/record.json", "text": json.dumps(record)})
    return {"id": name}


def scratch_directory(name):
    return "/tmp/rlbox-" + name  # noqa: S108


def link_temp(disk):
    """Have Ray's directory lie on the data disk, unless the machine has one already."""
    if not os.path.lexists(TEMP):
        path = f"ray-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.join(disk, path), 0o700)
        os.symlink(os.path.join(disk, path), TEMP)


def stop_processes(record, grace):
    """End the session of a record: its leader's child is asked first, then all of it is killed."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILL_S)):
        until = time.monotonic() + patience
        pids = session_members(record)
        if number == signal.SIGTERM:
            pids = [pid for pid in pids if (read_stat(pid) or (0,))[0] == record["pid"]] if grace else []
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        while time.monotonic() < until and session_members(record):
            time.sleep(0.05)


def stop_request(request):
    """Stop Ray's processes by the names of their records, which no longer count; their logs stay."""
    for name in request["ids"]:
        record = find_record(request["disk"], name)
        stop_processes(record, request["grace"])
        os.rename(os.path.join(record["folder"], "record.json"), os.path.join(record["folder"], "ended.json"))
    return {}


def clear_cluster(request):
    """Remove a cluster's directories from the data disk, with what its processes left; `containers`: it had some."""
    disk, removed = request["disk"], []
    for path in request["paths"]:
        full = inside(disk, path)
        for record in process_records(disk):
            if record["folder"].startswith(full + "/"):
                stop_processes(record, 0)
        for name in list_names(full + "/here"):
            shutil.rmtree(scratch_directory(name), ignore_errors=True)
        sessions = [name for name in list_names(full + "/ray") if _SESSION.match(name)]
        removed.append((bool(sessions), remove_path(disk, path)))
    remove_sessions(disk)
    if request["containers"]:
        remove_empty(disk, "cache")  # where programs in them compile
    return {"sessions": any(row[0] for row in removed), "folder": any(row[1] for row in removed)}


def remove_sessions(disk):
    """Remove Ray's sessions that no process has, and with the last of them the link to where they are."""
    own = os.path.join(disk, f"ray-{os.getuid()}")
    if os.path.realpath(TEMP) != os.path.realpath(own):
        return
    commands = "\0".join(read_text(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit())
    sessions = [name for name in list_names(own) if _SESSION.match(name)]
    dead = [name for name in sessions if name not in commands]
    for name in dead:
        shutil.rmtree(os.path.join(own, name), ignore_errors=True)
    if dead == sessions:
        os.unlink(TEMP)
        shutil.rmtree(own, ignore_errors=True)


def list_names(path):
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def execute(request):
    """Become a program of an installed target."""
    os.chdir("/")
    argv = request["argv"]
    os.execvpe(argv[0], argv, installed_environment(request))  # noqa: S606


def process_output(request):
    record = find_record(request["disk"], request["id"])
    return {"text": "\n".join(read_text(os.path.join(record["folder"], "log")).splitlines()[-request["lines"] :])}


# ---- what is watched and read


def cluster_rows(request):
    """Return Ray's containers and processes of all clusters here."""
    rows = process_rows(request["disk"])
    return rows if request.get("here") else rows + list_containers()


def watch(request):
    """Return containers, where the engine answers, processes and the data disk."""
    facts = {"disk": disk_facts(request["disk"])}
    with contextlib.suppress(OSError, ValueError):
        facts["clusters"] = cluster_rows(request)
    return facts


def ray_logs_directory(request):
    """Return where the newest session of Ray has its logs: below the cluster's directory, or behind `/tmp/ray`."""
    top = TEMP if request["here"] else os.path.join(request["disk"], request["folder"], "ray")
    sessions = [name for name in list_names(os.path.realpath(top)) if _SESSION.match(name)]
    return os.path.join(os.path.realpath(top), sessions[-1] if sessions else "none", "logs")


class LogReader:
    """The files of a directory as they grow; of each at most the last bytes are read at first. No link is followed."""

    def __init__(self, patterns, most):
        self._patterns, self._most, self._offsets = patterns, most, {}

    def read_new(self, folder, last):
        """Return what each file gained, with when it was last written; `last`: with its unfinished line."""
        rows = []
        for name in list_names(folder):
            path = os.path.join(folder, name)
            if any(fnmatch.fnmatch(name, pattern) for pattern in self._patterns) and not os.path.islink(path):
                with contextlib.suppress(OSError), open(path, "rb") as file:
                    text = self._read(file, last)
                    if text:
                        rows.append({"file": name, "text": text, "at": os.fstat(file.fileno()).st_mtime})
        return rows

    def _read(self, file, last):
        size, is_new = os.fstat(file.fileno()).st_size, file.name not in self._offsets
        offset = self._offsets.get(file.name, max(0, size - self._most))
        file.seek(offset)
        data = file.read(self._most)
        end = len(data) if last or len(data) == self._most else data.rfind(b"\n") + 1
        begin = data.find(b"\n") + 1 if is_new and offset else 0
        self._offsets[file.name] = offset + end
        return data[begin:end].decode("utf-8", "replace")


def follow_logs(request, emit, lines):
    """Report what Ray's logs hold, and with `follow` what they gain until a line comes or the input ends."""
    reader, first = LogReader(request["names"], request["most"]), True
    last = not request["follow"]
    while True:
        rows = reader.read_new(ray_logs_directory(request), last)
        if rows or first:
            emit({"first": first, "now": time.time(), "logs": rows})
        if last:
            return
        first, last = False, lines.wait(_POLL_S)
