"""The interpreter that is ready: it waits for programs, and each of them runs in a copy of it that was never used.

A keeper starts the interpreter of the programs as `python -B main.py`, in a root like theirs, where no such file is,
and as the first process of a process namespace. Python loads this last of all, before it opens the file. Here it waits;
for each program it forks a process, which raises the walls around itself and returns: so Python goes on there as if it
had just been started, and opens the file, which by then is the program. Nothing of this module is left to be seen: no
frame below the program's, no module, no path, no variable. At the end of a request the first process kills all others
and buries them, until it has no child: then nothing there is alive, for whoever loses its parent becomes its child.

What it is told comes over descriptor 3 from the keeper, which alone holds the other end: first how walls are raised
here, then a message for each request with its descriptors, and one for its end. Run by the stack's interpreter, which
has no rlbox; what it loads and Python does not load by itself is forgotten again.
"""

import os
import sys

_KNOWN = set(sys.modules)
import ctypes  # noqa: E402
import gc  # noqa: E402 - after what is known
import marshal  # noqa: E402

MYPY = False
if MYPY:
    from typing import Any

_CONTROL, _REPORT, _PIDS, _MOST = 3, 100, 101, 256  # descriptors; those of paths that may be read follow
_NAME = "sitecustomize"
_LEADING = ("__loader__", "__spec__", "os", "sys", "marshal", "_os", "_sys", "_types")
_PDEATHSIG, _NEW_MOUNT, _CLONE_TREE, _RECURSIVE, _FROM_HANDLE, _BIND, _LISTEN = 1, 0x20000, 1, 0x8000, 4, 0x1000, 8
_LANDLOCK, _OPEN_TREE, _MOVE_MOUNT, _CLOSE_RANGE = 444, 428, 429, 436  # the same on every machine
_HERE, _CLOEXEC = -100, 0x40000000

_ENDING = (type(sys), type(sys._getframe()))  # modules are looked at once all of Python's own have ended
_C = ctypes.PyDLL(None, use_errno=True)
_call = _C.syscall
_call.argtypes = (ctypes.c_long,) * 7
_call.restype = ctypes.c_long
_DATA, _EXTRA = ctypes.create_string_buffer(1 << 16), ctypes.create_string_buffer(256)
_ROOM, _USED = ctypes.create_string_buffer(1 << 16), [0]
_TWO, _STATUS, _USAGE = ctypes.c_uint64 * 2, ctypes.c_int(), (ctypes.c_long * 18)()
_PART = _TWO(ctypes.addressof(_DATA), len(_DATA))
_HEAD = (ctypes.c_uint64 * 7)(0, 0, ctypes.addressof(_PART), 1, ctypes.addressof(_EXTRA), len(_EXTRA), 0)


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _system(name: str, number: int, *words: int) -> int:
    return _checked(name, _call(number, *words, *(0,) * (6 - len(words))))


def _at(content: bytes) -> int:
    """Return an address where bytes are, for as long as this process asks for few; no type is made for it."""
    place = _USED[0]
    _USED[0] += (len(content) + 7) // 8 * 8
    ctypes.memmove(ctypes.addressof(_ROOM) + place, content, len(content))
    return ctypes.addressof(_ROOM) + place


def _prctl(what: int, value: int) -> None:
    _checked("prctl", _C.prctl(what, ctypes.c_ulong(value), 0, 0, 0))


def _receive() -> "tuple[bytes, list[int]]":
    """Return the keeper's next message with its descriptors; nothing when it is gone."""
    _PART[1], _HEAD[5] = len(_DATA), len(_EXTRA)
    size = _checked("receive", _C.recvmsg(_CONTROL, _HEAD, _CLOEXEC))
    head = _EXTRA.raw
    end = int.from_bytes(head[:8], sys.byteorder) if _HEAD[5] else 16
    return ctypes.string_at(_DATA, size), [int.from_bytes(head[n : n + 4], sys.byteorder) for n in range(16, end, 4)]


def _hand_over(fd: int) -> None:
    """Send a descriptor to the keeper."""
    ctypes.memmove(_EXTRA, b"".join(n.to_bytes(w, sys.byteorder) for n, w in ((20, 8), (1, 4), (1, 4), (fd, 8))), 24)
    _DATA[0], _PART[1], _HEAD[5] = b"\n", 1, 24
    _checked("send", _C.sendmsg(_REPORT, _HEAD, 0))


def _wait() -> None:
    """Wait for programs; return in a process that is to be one, and nowhere else."""
    told = marshal.loads(_receive()[0])  # noqa: S302 the keeper's, as all that comes here
    rules: list[tuple[int, int]] = []
    for path, rights in told["rules"]:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rules.append((os.dup2(opened, _PIDS + 1 + len(rules), inheritable=False), rights))
        os.close(opened)
    told["rules"] = rules
    for fd in (_CONTROL, _REPORT, _PIDS):
        os.set_inheritable(fd, False)
    os.write(_CONTROL, b"ready")
    while True:
        message, fds = _receive()
        if not message:
            os._exit(0)
        plan = marshal.loads(message)  # noqa: S302
        programs: dict[int, int] = {}
        os.pwrite(_PIDS, b"1", 0)  # which ids there were before is not to be seen
        for number in range(len(plan["programs"])):
            pid = _fork()
            if not pid:
                _become(told, plan, number, fds)
                return
            programs[pid] = number
        for fd in fds:
            os.close(fd)
        os.write(_CONTROL, b"begun")
        _receive()
        os.write(_CONTROL, _end(programs).encode())


def _fork() -> int:
    try:
        return os.fork()
    except OSError as error:
        _tell(f"error {error}")
        return -1


def _end(programs: "dict[int, int]") -> str:
    """End all other processes, and say how: seconds of them all, and number, status and most memory of each program."""
    found: list[str] = []
    seconds = 0.0
    while True:
        _C.kill(-1, 9)  # which finds nobody where all have ended
        pid = _C.wait4(-1, ctypes.byref(_STATUS), 0, _USAGE)
        if pid < 0:
            return "\n".join([str(seconds), *found])
        seconds += _USAGE[0] + _USAGE[2] + (_USAGE[1] + _USAGE[3]) / 1e6
        if pid in programs:
            found.append(f"{programs[pid]} {_STATUS.value} {_USAGE[4]}")


def _tell(text: str) -> None:
    os.write(_REPORT, text[:4000].encode("utf-8", "replace"))


def _mount(again: "list[str]", folder: int) -> None:
    """Lay the request's own file system over the three folders that are written; what lay in them shows again."""
    seen = []
    for path in again:
        address = _at(path.encode() + b"\0")
        fd = _system("open tree", _OPEN_TREE, _HERE, address, _CLONE_TREE | _RECURSIVE | os.O_CLOEXEC)
        seen.append((address, fd))
    nothing = _at(b"\0")
    _system("move mount", _MOVE_MOUNT, folder, nothing, _HERE, _at(b"/program\0"), _FROM_HANDLE)
    for name, goal in ((b"tmp", b"/tmp"), (b"shm", b"/dev/shm"), (b"program", b"/program")):
        _checked("bind", _C.mount(b"/program/" + name, goal, None, ctypes.c_ulong(_BIND), None))
    for address, fd in seen:
        _system("move mount", _MOVE_MOUNT, fd, nothing, _HERE, address, _FROM_HANDLE)
        os.close(fd)


def _become(told: "dict[str, Any]", plan: "dict[str, Any]", number: int, fds: "list[int]") -> None:
    """Raise the walls around this process, and return if it is to be a Python program; else carry it out."""
    try:
        program = plan["programs"][number]
        _prctl(_PDEATHSIG, 9)
        if program["folder"]:  # of two programs one has none
            _system("unshare", told["calls"]["unshare"], _NEW_MOUNT)
            _mount(told["again"], fds[0])
        first = 1 + sum(one["fds"] for one in plan["programs"][:number])
        high = [os.dup2(fd, _MOST - 8 + n) for n, fd in enumerate(fds[first : first + program["fds"]])]
        for place, fd in enumerate(high):
            os.dup2(fd, place)
        os.setsid()
        os.chdir(program["folder"] or "/")
        for kind, value in plan["limits"]:
            _checked("limit", _C.setrlimit(kind, _TWO(value, value)))
        _system("drop capabilities", told["calls"]["capset"], _at(b"\x22\x05\x08\x20" + bytes(4)), _at(bytes(24)))
        for layer, act in (("landlock", _confine), ("forks", _ask_for_births)):
            if told[layer]:
                try:
                    act(told, program)
                except OSError as error:
                    _tell(f"lacks {layer} {error}")
        _filter(told, told["seccomp"][number], 0)
        _close(len(high), _REPORT)
        _close(_REPORT + 1, _MOST)
        if program["argv"]:
            os.execve(program["argv"][0], program["argv"], program["env"])  # noqa: S606
        os.close(_REPORT)
    except BaseException as error:
        _tell(f"error {error}")
        os.kill(os.getpid(), 9)


def _close(first: int, end: int) -> None:
    if _call(_CLOSE_RANGE, first, end - 1, 0, 0, 0, 0) < 0:
        os.closerange(first, end)


def _confine(told: "dict[str, Any]", program: "dict[str, Any]") -> None:
    """Confine this process to the paths that are opened, and to those of the request's own."""
    rules = _system("landlock_create_ruleset", _LANDLOCK, _at(told["landlock"]), len(told["landlock"]), 0)
    own = [(os.open(path, os.O_PATH | os.O_CLOEXEC), rights) for path, rights in program["write"]]
    for fd, rights in (*told["rules"], *own):
        rule = _at(rights.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder))
        _system("landlock_add_rule", _LANDLOCK + 1, rules, 1, rule, 0)
    _system("landlock_restrict_self", _LANDLOCK + 2, rules, 0)
    for fd in (rules, *(fd for fd, _ in own)):
        os.close(fd)


def _ask_for_births(told: "dict[str, Any]", program: "dict[str, Any]") -> None:
    """Have births asked for, and give the keeper what they are asked by."""
    listener = _filter(told, told["forks"], _LISTEN)
    _hand_over(listener)
    os.close(listener)


def _filter(told: "dict[str, Any]", code: bytes, flags: int) -> int:
    """Put this process under a filter of system calls; return the listener, where one is asked for."""
    program = len(code) // 8, _at(code)
    words = _at(b"".join(word.to_bytes(8, sys.byteorder) for word in program))
    return _system("seccomp", told["calls"]["seccomp"], 1, flags, words)


def _forget() -> bool:
    """Forget what Python would not have, and load the machine's own module of this name; return whether there is none.

    What is left of it nobody finds: it is no garbage, and leads to no module of Python's own, which it would keep alive
    at a program's end, with all that the program has put there.
    """
    for name in set(sys.modules) - _KNOWN:
        _cut(sys.modules.pop(name).__dict__)
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != own]
    sys.path_importer_cache.pop(own, None)
    os.environ.pop("PYTHONPATH", None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(globals()))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(ctypes.__dict__))
    sys.modules.pop(_NAME, None)
    try:
        __import__(_NAME)
    except ImportError as error:
        if error.name != _NAME:
            raise
    return _NAME not in sys.modules


def _cut(names: "dict[str, Any]") -> None:
    """Have a module lead to none of Python's own."""
    for name in _LEADING:
        names.pop(name, None)


def _pass_over() -> None:
    """Have a program's search for garbage not look through what Python has made so far, nor its end take it apart.

    Of that `__main__` alone is the program's. What a program hangs into Python's own modules is not looked for at its
    end then: one that could tell is started anew (the keeper's rule), and looks through everything.
    """
    gc.collect()
    own = sys.modules["__main__"].__dict__
    for one in gc.get_objects():
        if one is not own and not isinstance(one, _ENDING):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
    ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(own))
    gc.freeze()
    ctypes.pythonapi.PyObject_GC_Track(ctypes.py_object(own))


_none = _forget()
_pass_over()
_wait()
_cut(globals())
if _none:
    raise ImportError("there is none of this name", name=_NAME)
