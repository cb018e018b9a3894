"""Programs that are forked from an interpreter that is ready: none sees another, and each runs as if started anew."""

# ruff: noqa: E501 a program a line
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from campaign import Server

ANEW = {".local/keep": ""}
"""A file that has the sandbox start an interpreter: Python looks there before it waits for programs."""
PLACES = re.compile(r"0x[0-9a-f]{6,}|\b\d{14,15}\b")  # of objects, and threads' idents


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Server(tmp_path_factory.mktemp("scratch"), ["--cpu-s", "10", "--at-once", "1"])
    if "namespaces" not in one.strength["strength"]:
        one.stop()
        pytest.skip("this machine gives no namespaces: nothing is ready here")
    yield one
    one.stop()


def ran(server: Server, code: str, **more: Any) -> dict[str, Any]:
    answer = server.ask("/run_code", {"code": code, "language": "python", **more})
    assert answer["run_result"], answer
    result = {
        name: PLACES.sub("-", str(text)) for name, text in answer["run_result"].items() if name != "execution_time"
    }
    return {**result, "limit": answer["rlbox"]["limit"], "files": answer["files"]}


ODD = {
    "names": "print(__name__, __file__, __spec__, __package__, __doc__, __builtins__, type(__loader__), sorted(globals()))\n"
    "print(__loader__.path, __loader__.name, __cached__)",
    "words": "import sys\nprint(sys.argv, sys.orig_argv, sys.flags, sys.path, sys.executable, sys.prefix, sys.warnoptions)\n"
    "print(sys._xoptions, sys.getrecursionlimit(), sys.dont_write_bytecode, sys.pycache_prefix, sys.getswitchinterval())",
    "modules": "import sys\nprint(sorted(sys.modules))",
    "environment": "import os\nprint(list(os.environ.items()), os.getcwd(), os.getpid(), os.umask(0), os.getuid(), os.getgid())",
    "streams": "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr):\n"
    "    print(s, s.errors, s.newlines, s.line_buffering, s.write_through, s.isatty(), s.buffer, s.buffer.raw, s.seekable())",
    "buffers": "import os, sys\nsys.stdout.write('x' * 5000)\nsys.stderr.write('y' * 5000)\nsys.stdout.write('z' * 4000)\nos._exit(7)",
    "input": "print(input())\nimport sys\nprint(sys.stdin.readline(), list(sys.stdin))\ninput()",
    "exit with text": "import sys\nsys.exit('text')",
    "exit with a list": "import sys\nsys.exit([1])",
    "exit with none": "import sys\nsys.exit(None)",
    "exit above": "import sys\nsys.exit(263)",
    "exit below": "import sys\nsys.exit(-1)",
    "exit of site": "print(exit, quit, copyright, sep='|')\nexit(3)",
    "exit at once": "import os\nprint('lost')\nos._exit(5)",
    "at exit": "import atexit\natexit.register(print, 1)\natexit.register(print, 2)\nprint(atexit._ncallbacks())",
    "at exit, badly": "import atexit\n@atexit.register\ndef f(): 1 / 0",
    "taken apart": "class A:\n    def __init__(s, n): s.n = n\n    def __del__(s): print('gone', s.n, A, __name__)\n"
    "a, _b = A(1), A(2)\nc = A(3); c.self = c\nimport os\nos.d = A(4)\ndef f(x=A(5)): return g\ng = f",
    "not flushed": "f = open('out', 'w')\nf.write('kept')",
    "hung into a module": "import os\nf = open('out', 'w')\nf.write('kept')\nos.getcwd = lambda: f",
    "threads": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print('late'))).start()\n"
    "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\nprint(threading.main_thread(), threading.active_count())",
    "a thread that raises": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\nt.start(); t.join()",
    "raised": "def f():\n    try: 1 / 0\n    except ZeroDivisionError as e: raise KeyError('x') from e\nf()",
    "interrupted": "raise KeyboardInterrupt",
    "a group raised": "try: ExceptionGroup\nexcept NameError: ExceptionGroup = Exception\nraise ExceptionGroup('g', [ValueError(1), KeyError(2)])",
    "no syntax": "def f(:\n    pass",
    "no indentation": "if 1:\npass",
    "nothing": "",
    "null bytes": "print(1)\0",
    "another encoding": "# coding: latin-1\nprint(len('\u00e9'))",
    "no such encoding": "# coding: nonesuch\nprint(1)",
    "byte order mark": "\ufeffprint('\u00e9')",
    "surrogates": "print('\\ud800')",
    "depth": "def f(n):\n    global most\n    most = n\n    f(n + 1)\ntry: f(1)\nexcept RecursionError as e: print(most, e)",
    "frames": "import sys, traceback, inspect\nprint(sys._getframe().f_back, len(inspect.stack()), sys._getframe().f_code)\n"
    "traceback.print_stack()\nprint(traceback.format_stack())",
    "warned": "import warnings\nwarnings.warn('w')\nwarnings.warn('d', DeprecationWarning)\nimport re\nre.compile('a(?i)')\nassert (1, 'x')",
    "signals": "import signal\nprint([signal.getsignal(n) for n in range(1, 65)], signal.pthread_sigmask(0, []), signal.getitimer(0))",
    "terminated": "import os, time\nos.kill(os.getpid(), 15)\ntime.sleep(9)",
    "interrupted by a signal": "import os, time\nos.kill(os.getpid(), 2)\ntime.sleep(9)",
    "aborted": "import os\nos.abort()",
    "crashed": "import ctypes\nctypes.string_at(0)",
    "limits": "import resource\nprint([resource.getrlimit(n) for n in range(16)])",
    "descriptors": "import os\ndef there(n):\n    try: return os.fstat(n)\n    except OSError: pass\n"
    "print([(n, os.get_inheritable(n), oct(there(n).st_mode)) for n in range(256) if there(n)])",
    "garbage": "import gc\nprint(gc.collect(), gc.isenabled(), gc.get_threshold(), gc.garbage, gc.callbacks)\n"
    "a = [1]\nb = {'a': a}\nprint([type(x) for x in gc.get_referrers(a)], gc.is_tracked(globals()))\n"
    "class A: pass\nx = A(); x.x = x; del x\nprint(gc.collect())",
    "the C library": "import ctypes, struct, socket, resource\nprint(ctypes.CDLL(None).getpid(), ctypes.sizeof(ctypes.c_long), struct.pack('i', 3))\n"
    "class P(ctypes.Structure): _fields_ = [('a', ctypes.c_int), ('b', ctypes.c_char * 3)]\nprint(bytes(P(1, b'ab')), ctypes.POINTER(P))\n"
    "a, b = socket.socketpair()\na.send(b'x'); print(b.recv(1))\nf = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: n + 1)\nprint(f(2))",
    "itself again": "import sys, subprocess\nif len(sys.argv) < 2: print(subprocess.run([sys.executable, 'main.py', 'x'], capture_output=True))\n"
    "else: print(sys.flags, sys.argv, sys.path)",
    "processes": "import multiprocessing, os\ndef f(q): q.put(__name__)\nif __name__ == '__main__':\n    for way in ('fork', 'spawn'):\n"
    "        c = multiprocessing.get_context(way)\n        q = c.SimpleQueue(); p = c.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join(); print(p.exitcode)",
    "pickled": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))), pickle.dumps(A).count(b'__main__'))",
    "run by name": "import runpy, sys\nif sys.argv[0] == 'main.py' and 'done' not in globals():\n    print(runpy.run_path('main.py', {'done': 1})['__name__'])",
    "names of the machine": "import locale, sys, os\nprint(locale.getlocale(), sys.getfilesystemencoding(), os.uname().nodename, sys.getdefaultencoding())",
    "a module of its own": "open('mod.py', 'w').write('x = __file__, __name__')\nimport mod\nprint(mod.x, mod.__spec__, mod.__cached__)",
    "hashes": "import sys\nprint(sys.flags.hash_randomization, hash(1.5), hash((1, 2)), len({hash(str(n)) for n in range(99)}))",
    "weak references": "import weakref, os, sys\nprint(weakref.getweakrefcount(os), [type(x) for x in weakref.getweakrefs(sys)])",
    "audited": "import sys\nsys.addaudithook(lambda name, args: print(name) if name == 'open' else None)\nopen('x', 'w')",
    "customized": "import sys\nprint('sitecustomize' in sys.modules, 'usercustomize' in sys.modules, sys.path_importer_cache.keys() & {'/program'})",
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_program_runs_as_in_an_interpreter_that_is_started_for_it(server: Server, name: str) -> None:
    more = {"stdin": "one\ntwo\nthree", "fetch_files": ["out"]}
    assert ran(server, ODD[name], **more) == ran(server, ODD[name], files=ANEW, **more)


LEAVES = """
import builtins, ctypes, fcntl, mmap, os, resource, signal, socket, subprocess, sys, time
for folder in (".", "/tmp", "/dev/shm"):
    os.makedirs(f"{folder}/left/deep")
    for number in range(300):
        open(f"{folder}/left/{number}", "w").write("secret")
    open(f"{folder}/.hidden", "w").write("secret")
os.mkfifo("/tmp/line")
subprocess.Popen(["/bin/sleep", "77"], start_new_session=True)
for number in range(40):
    if not os.fork():
        os.setsid()
        os._exit(0) if number else time.sleep(77)
builtins.left = "secret"
builtins.print = None if False else builtins.print
sys.modules["left"] = sys
os.getcwd = time.time = lambda: "secret"
sys.path.insert(0, "/tmp/left")
sys.setrecursionlimit(77)
sys.excepthook = sys.unraisablehook = lambda *a: None
os.environ["LEFT"] = "secret"
ctypes.CDLL(None).setenv(b"ALSO_LEFT", b"secret", 1)
os.umask(0o777)
os.nice(5)
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
for number in range(30, 60):
    os.dup2(1, number)
kept = [socket.socketpair() for _ in range(5)]
os.set_blocking(1, False)
fcntl.fcntl(1, 1031, 1 << 16)
fcntl.flock(0, fcntl.LOCK_EX)
for number in (1, 2, 10, 12, 14, 15, 17):
    signal.signal(number, lambda *a: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {10, 12})
signal.setitimer(signal.ITIMER_REAL, 55)
resource.setrlimit(resource.RLIMIT_NOFILE, (70, 70))
resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))
shared = mmap.mmap(-1, 1 << 20)
shared[:6] = b"secret"
os.chdir("/tmp/left")
ctypes.CDLL(None).prctl(15, b"secret", 0, 0, 0)
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
print("left")
"""
SEES = """
import builtins, ctypes, fcntl, os, resource, signal, sys, time
def tried(act, *words):
    try: return act(*words)
    except Exception as error: return repr(error)
def facts(path):
    found = os.lstat(path)
    return path, found.st_ino, found.st_mode, found.st_nlink, found.st_size, found.st_blocks
for folder in (".", "/tmp", "/dev/shm"):
    print(facts(folder), [facts(f"{folder}/{name}") for name in sorted(os.listdir(folder))], os.statvfs(folder))
children = []
for _ in range(3):
    pid = os.fork()
    if not pid: os._exit(0)
    children.append(pid)
    os.waitpid(pid, 0)
print(os.getpid(), os.getppid(), os.getsid(0), children, [tried(os.kill, pid, 0) for pid in range(3, 200)])
print(sorted(sys.modules), sorted(vars(builtins)), sys.path, sys.getrecursionlimit(), os.getcwd(), time.time() > 1)
print(sys.excepthook, sys.unraisablehook, dict(os.environ), ctypes.CDLL(None).getenv(b"ALSO_LEFT"))
print(os.umask(0), os.nice(0), os.sched_getaffinity(0), signal.getitimer(0), signal.pthread_sigmask(0, []))
print([tried(os.fstat, number) for number in range(3, 256)], [fcntl.fcntl(n, 3) for n in range(3)], fcntl.fcntl(1, 1032))
print([signal.getsignal(n) for n in range(1, 65)], [resource.getrlimit(n) for n in range(16)], fcntl.flock(0, 6))
name = ctypes.create_string_buffer(16)
ctypes.CDLL(None).prctl(16, name, 0, 0, 0)
print(name.value, resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt < 2000)
"""  # fmt: skip


def test_nothing_of_a_program_is_seen_by_the_next(server: Server, tmp_path: Path) -> None:
    fresh = Server(tmp_path, ["--cpu-s", "10", "--at-once", "1"])
    try:
        before = ran(fresh, SEES)
        assert (before["return_code"], before["stderr"]) == ("0", "")
        assert ran(fresh, LEAVES)["stdout"] == "left\n"
        assert ran(fresh, SEES) == before
    finally:
        fresh.stop()


def test_a_checked_program_is_not_seen_by_the_next(server: Server) -> None:
    code = "import os\nfor d in ('.', '/tmp', '/dev/shm'): open(f'{d}/left', 'w').close()\nif not os.fork():\n    os.setsid()\n    os.execv('/bin/sleep', ['sleep', '77'])\ndef f(x): return x"
    see = "import os\ndef f(x): return [sorted(os.listdir(d)) for d in ('.', '/tmp', '/dev/shm')] + [os.getpid()]"
    assert server.ask("/check", {"code": code, "tests": "assert f(1) == 1"})["verdict"] == "accepted"
    tests = "found = f(1)\nassert found[0] == ['main.py'] and 'left' not in str(found) and found[3] == 3, found"
    assert server.ask("/check", {"code": see, "tests": tests})["verdict"] == "accepted"


def test_a_request_takes_what_it_may_whatever_was_taken_before(server: Server) -> None:
    """A limit that was lowered is the server's again, and what was counted is counted no more."""
    large = "x = bytearray(b'1' * (300 << 20))\nprint(len(x))"
    spin = "import time\nwhile time.process_time() < 1: pass"
    assert ran(server, large, memory_limit_MB=128)["stdout"] == ""
    assert ran(server, large)["stdout"] == f"{300 << 20}\n"
    assert ran(server, spin, run_timeout=0.2)["limit"] == "cpu"
    assert [ran(server, spin, run_timeout=1.8)["limit"] for _ in range(3)] == [""] * 3


def test_programs_do_not_share_the_seed_of_their_hashes_for_ever(server: Server) -> None:
    """Nor does the process that keeps them live as long as the server."""
    assert len({ran(server, "print(hash('a'))")["stdout"] for _ in range(220)}) > 1


def test_where_an_interpreter_does_not_get_ready_each_program_is_started_anew(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(
        f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -S "$@"\n'
    )  # it looks for nothing to load at its start
    python.chmod(0o755)
    (tmp_path / "scratch").mkdir()
    one = Server(tmp_path / "scratch", ["--python", str(python)])
    try:
        told = {ran(one, "import os, sys\nprint(os.getppid(), sys.flags.no_site)")["stdout"] for _ in range(4)}
    finally:
        one.stop()
    assert ("namespaces" in one.strength["strength"], told) == (True, {"0 1\n"})


def test_an_interpreter_below_a_folder_that_programs_write_gets_ready(tmp_path: Path) -> None:
    """It shows there again, in each request's own folder, and so does each link that leads to it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "scratch").mkdir()
    python, between = tmp_path / "venv/bin/python", tmp_path / "between/python"
    between.parent.mkdir()
    between.symlink_to(python.resolve())
    python.unlink()
    python.symlink_to(between)  # as to the interpreter of a venv which made this one
    one = Server(tmp_path / "scratch", ["--python", str(tmp_path / "venv/bin/python")])
    code = "import os, sys\nprint(os.getppid(), sys.prefix, os.listdir('/tmp'))\nopen('/tmp/x', 'w')\nopen(f'{sys.prefix}/x', 'w')"
    try:
        answers = [ran(one, code) for _ in range(3)]
    finally:
        one.stop()
    assert all(answer["stdout"].startswith(f"1 {tmp_path}/venv [") for answer in answers)
    assert not any("'x'" in answer["stdout"] for answer in answers)
    assert all("Read-only file system" in answer["stderr"] for answer in answers)


def test_where_the_interpreter_that_is_ready_is_killed_the_next_program_has_another(tmp_path: Path) -> None:
    one = Server(tmp_path, ["--at-once", "1"])
    try:
        assert ran(one, "import os\nprint(os.getppid())")["stdout"] == "1\n"
        makers = children(one.process.pid)
        ready = [child for maker in makers for keeper in children(maker) for child in children(keeper)]
        assert len(ready) == 1
        os.kill(ready[0], signal.SIGKILL)
        refused = one.ask("/run_code", {"code": "pass"})
        assert refused["status"] in ("SandboxError", "Success")  # it may be noticed before
        assert [ran(one, "print(1)")["stdout"] for _ in range(3)] == ["1\n"] * 3
    finally:
        one.stop()


def children(pid: int) -> list[int]:
    return [int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()]
