"""The sandbox over HTTP, with real programs: protocol, limits, verdicts, and a sample of what attacks it."""

# ruff: noqa: E501 a program a line
from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from campaign import GOOD, GOOD_TESTS, Server, goes_on, run
from hostile import attacks

from rlbox.sandbox.plan import CGROUP, LAYERS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Server(tmp_path_factory.mktemp("scratch"), ["--cpu-s", "4"])
    yield one
    one.stop()


def ran(server: Server, code: str, **more: Any) -> dict[str, Any]:
    return server.ask("/run_code", {"code": code, "language": "python", **more})


def test_the_answer_has_sandboxfusions_fields(server: Server) -> None:
    answer = ran(server, "import sys; print(input()); sys.stderr.write('e')", stdin="in", files={"a/b": "eA=="})
    assert answer.keys() == {
        "status", "message", "compile_result", "run_result", "executor_pod_name", "files", "rlbox",
    }  # fmt: skip
    assert (answer["status"], answer["message"], answer["compile_result"], answer["files"]) == ("Success", "", None, {})
    result = answer["run_result"]
    assert result.pop("execution_time") < 1
    assert result == {"status": "Finished", "return_code": 0, "stdout": "in\n", "stderr": "e"}


@pytest.mark.parametrize("length", ["", "x", "-1", "9" * 9, "9" * 5000])
def test_a_request_of_no_length_is_refused(server: Server, length: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", "/run_code", headers={"Content-Length": length})
    assert connection.getresponse().status == 413
    connection.close()


def test_files_go_in_and_come_back(server: Server) -> None:
    code = "open('out', 'w').write(open('a/b').read() * 2)"
    assert ran(server, code, files={"a/b": "eA=="}, fetch_files=["out", "none"])["files"] == {"out": "eHg="}


@pytest.mark.parametrize(
    ("code", "more", "status", "return_code", "limit"),
    [
        ("raise SystemExit(3)", {}, "Finished", 3, ""),
        ("import os; os.kill(os.getpid(), 15)", {}, "Finished", -15, ""),
        ("while True: pass", {"run_timeout": 0.5}, "TimeLimitExceeded", None, "cpu"),
        ("import time; time.sleep(60)", {"run_timeout": 0.5}, "TimeLimitExceeded", None, "sleep"),
        ("while True: print('x' * 999)", {}, "Error", -9, "output"),
        ("import os, time\nos.fork(), os.fork()\nx = b'1' * (60 << 20)\ntime.sleep(9)",
         {"memory_limit_MB": 128}, "Error", -9, "memory"),
        ("import time\nfor n in range(80): open(f'f{n}', 'wb').write(b'x' * (1 << 20))\ntime.sleep(9)", {}, "Error", -9, "disk"),
    ],
)  # fmt: skip
def test_what_a_run_may_take(
    server: Server, code: str, more: dict[str, Any], status: str, return_code: int | None, limit: str
) -> None:
    answer = ran(server, code, **more)
    result = answer["run_result"]
    assert (result["status"], result["return_code"], answer["rlbox"]["limit"]) == (status, return_code, limit)
    assert answer["status"] == "Failed"


@pytest.mark.parametrize(("size", "status", "limit"), [(1 << 20, "Finished", ""), ((1 << 20) + 1, "Error", "output")])
def test_output_of_a_program_that_ends_at_once_is_judged_by_its_size(
    server: Server, size: int, status: str, limit: str
) -> None:
    answer = ran(server, f"import os; os.write(1, b'x' * {size}); os._exit(0)")
    assert (answer["run_result"]["status"], answer["rlbox"]["limit"]) == (status, limit)


def test_a_request_lowers_limits_and_never_raises_them(server: Server) -> None:
    code = (
        "import resource; print(resource.getrlimit(resource.RLIMIT_CPU)[0], resource.getrlimit(resource.RLIMIT_AS)[0])"
    )
    assert ran(server, code)["run_result"]["stdout"] == f"13 {1 << 30}\n"
    assert ran(server, code, run_timeout=900, memory_limit_MB=9999)["run_result"]["stdout"] == f"13 {1 << 30}\n"
    assert ran(server, code, run_timeout=2, memory_limit_MB=256)["run_result"]["stdout"] == f"9 {256 << 20}\n"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("bash", "echo $((40 + 2))"),
        ("c", '#include <stdio.h>\nint main(){ printf("%d\\n", 42); }'),
        ("cpp", '#include <iostream>\nint main(){ std::cout << 42 << "\\n"; }'),
    ],
)
def test_languages(server: Server, language: str, code: str) -> None:
    if language != "bash" and not os.path.exists("/usr/bin/g++"):
        pytest.skip("this machine has no C++ compiler")
    answer = ran(server, code, language=language)
    assert (answer["status"], (answer["run_result"] or {}).get("stdout")) == ("Success", "42\n"), answer


def test_what_programs_may_do(server: Server) -> None:
    """Walls are no use where honest programs stumble over them."""
    code = """
import subprocess, tempfile, threading, asyncio, shutil, os, multiprocessing
threading.Thread(target=print, args=("thread",)).start()
print(subprocess.run(["echo", "process"], capture_output=True, text=True).stdout)
with tempfile.TemporaryDirectory() as folder:
    open(f"{folder}/a", "w").write("file"); shutil.copy(f"{folder}/a", f"{folder}/b"); print(open(f"{folder}/b").read())
async def main(): await asyncio.sleep(0.01); print("loop")
asyncio.run(main())
print(end="", flush=True)
pid = os.fork()
if not pid: print("forked", flush=True); os._exit(0)
os.waitpid(pid, 0)
"""
    result = ran(server, code)["run_result"]
    assert (result["stderr"], sorted(result["stdout"].split())) == ("", ["file", "forked", "loop", "process", "thread"])


@pytest.mark.parametrize(
    ("code", "tests", "verdict"),
    [
        (GOOD, GOOD_TESTS, "accepted"),
        ("def f(x):\n    return x * 3", GOOD_TESTS, "wrong"),
        ("def f(x):\n    raise KeyError", GOOD_TESTS, "failed"),
        ("def g(x): ...", GOOD_TESTS, "failed"),
        ("def f(", GOOD_TESTS, "failed"),
        ("def f(x):\n    raise SystemExit(0)", GOOD_TESTS, "failed"),
        ("def f(x):\n    while True: pass", GOOD_TESTS, "timeout"),
        ("class Pair:\n    def __init__(self, a): self.a = a\n    def sum(self, b): return Pair(self.a + b.a)",
         "p = Pair(2).sum(Pair(3))\nassert p.a == 5", "accepted"),
        ("def f(*a, **k): return a, k", "assert f(1, b={2}) == ((1,), {'b': {2}})", "accepted"),
        ("def f(n): return (i for i in range(n))", "assert list(f(3)) == [0, 1, 2]", "accepted"),
        ("def f(x): raise ValueError('no')", "try:\n    f(1)\n    assert False\nexcept ValueError: pass", "accepted"),
        ("def f(x): return x ** 900", "assert f(7) == 7 ** 900", "accepted"),
        ("import math\ndef f(x): return x / 3", "assert math.isclose(f(1), 0.3333333333333)", "accepted"),
        ("answer = 42", "assert answer == 42", "accepted"),
        ("class statistics:\n    def mean(): return 7", "assert statistics.mean() == 7", "failed"),
        ("def f(x): return x", "import unittest as u\nclass T(u.TestCase):\n    def test_f(self):\n"
         "        self.assertEqual(f(3), 3)\n        with self.assertRaises(TypeError): f()\nu.main()", "accepted"),
        ("import threading\ndef f(x): return x", "from concurrent.futures import ThreadPoolExecutor\n"
         "with ThreadPoolExecutor(8) as pool: assert list(pool.map(f, range(99))) == list(range(99))", "accepted"),
        # tests that use classes: of the program, and of their own
        ("class S(list):\n    pass\nclass N:\n    def __init__(self, v): self.v, self.next = v, None\n"
         "def length(n):\n    return 0 if n is None else 1 + length(n.next)",
         "a, b = N(1), N(2)\na.next = b\nassert length(a) == 2 and a.next is b and isinstance(b, N)", "accepted"),
        ("class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return V(self.x + o.x)\n"
         "    def __eq__(self, o): return self.x == o.x\n    def __len__(self): return 3\n    def __iter__(self): return iter('ab')",
         "v = V(1) + V(2)\nassert v == V(3) and v != V(4) and len(v) == 3 and list(v) == ['a', 'b'] and 'b' in v", "accepted"),
        ("class Low(ValueError): pass\ndef f(x): raise Low('no')",
         "for kind in (Low, ValueError):\n    try: f(1)\n    except kind as error: assert str(error) == 'no'", "accepted"),
        ("def f(items): return sum(item.w for item in items)",
         "class I:\n    def __init__(self, w): self.w = w\nassert f([I(1), I(2)]) == 3", "accepted"),
        ("def memo(g):\n    known = {}\n    def h(x):\n        if x not in known: known[x] = g(x)\n        return known[x]\n"
         "    return h", "calls = []\n@memo\ndef sq(x):\n    calls.append(x)\n    return x * x\n"
         "assert (sq(3), sq(3), calls) == (9, 9, [3])", "accepted"),
        # threads and a queue, of the program and of the tests
        ("import queue\nclass Q:\n    def __init__(self): self.q = queue.Queue()\n    def put(self, x): self.q.put(x)\n"
         "    def get(self): return self.q.get()",
         "import threading, time\nq, r = Q(), []\nt = threading.Thread(target=lambda: r.append(q.get()))\nt.start()\n"
         "time.sleep(.1)\nq.put(4)\nt.join()\nassert r == [4]", "accepted"),
        ("def f(q): q.put(3)", "import queue\nq = queue.Queue()\nf(q)\nassert q.get() == 3", "accepted"),
        ("import datetime\nfrom collections import deque, namedtuple\nP = namedtuple('P', 'x y')\n"
         "def f(): return datetime.date(2020, 1, 2), deque([1]), P(1, 2)",
         "import datetime, collections\nd, q, p = f()\nassert d == datetime.date(2020, 1, 2) and q == collections.deque([1])\n"
         "assert p == (1, 2) and p.y == 2", "accepted"),
        ("import asyncio\nasync def f(x):\n    await asyncio.sleep(.01)\n    return x",
         "import asyncio\nassert asyncio.run(f(3)) == 3", "accepted"),
        # a program that no test calls, and an object that claims to equal all
        ("def f(x): return 3", "def test_f():\n    assert f(3) == 3", "failed"),
        ("class P:\n    __eq__ = lambda s, o: True\n    __hash__ = lambda s: 0\ndef f(x): return P()",
         "P()\nassert f(3) == 3", "wrong"),
        # lone surrogates get a verdict
        ("def f(): return '\\ud800'", "assert f() == '\\ud800'", "accepted"),
        ("def f(): return '\ud800'", "assert f() == 'x'", "failed"),
        ("def f(): return 1", "s = '\ud800'\nassert f() == 1", "failed"),
    ],
)  # fmt: skip
def test_verdicts(server: Server, code: str, tests: str, verdict: str) -> None:
    answer = server.ask("/check", {"code": code, "tests": tests, "run_timeout": 1})
    assert (answer["verdict"], answer["status"]) == (verdict, "Success" if verdict == "accepted" else "Failed"), answer


WAITS = """
import os, time
os.mkfifo("line")
if not os.fork():
    time.sleep(0.5)
    os.close(os.open("line", os.O_WRONLY))
    os._exit(0)
x = b"1" * (150 << 20)
actions = [(os.POSIX_SPAWN_OPEN, 0, "line", os.O_RDONLY, 0)]
os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions), 0)
print("done")
"""
MAPS = """
import mmap, tempfile, time
with tempfile.TemporaryFile() as file:
    file.write(b"x" * 40960)
    file.flush()
    view = mmap.mmap(file.fileno(), 0)
time.sleep(0.4)
print("done" if view[7] else "")
"""


@pytest.mark.parametrize("code", [WAITS, MAPS], ids=["a child that has its parent's memory", "a file in memory"])
def test_what_looks_like_too_much_and_is_not(code: str, tmp_path: Path) -> None:
    """Without a control group, where looks alone bound what is taken."""
    one = Server(tmp_path, ["--layers", "landlock,seccomp,forks"])
    try:
        answer = ran(one, code, memory_limit_MB=256)
        assert (answer["run_result"]["stdout"], answer["rlbox"]["limit"]) == ("done\n", "")
    finally:
        one.stop()


def test_what_nobody_awaits_is_not_run(server: Server) -> None:
    body = json.dumps({"code": "while True: pass", "language": "python", "run_timeout": 4}).encode()
    head = f"POST /run_code HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    gone = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40 * len(os.sched_getaffinity(0)))]
    for connection in gone:
        connection.sendall(head + body)
    time.sleep(0.5)
    for connection in gone:
        connection.close()
    assert ran(server, "print(1)")["status"] == "Success"


def test_an_interpreter_may_be_named_as_in_a_shell(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rlbox.sandbox", "probe", "--scratch", str(tmp_path), "--python"]
    folder, name = os.path.split(sys.executable)
    for python in (os.path.relpath(sys.executable), name):
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run([*words, python], capture_output=True, text=True, timeout=60, env=environment)
        assert (done.returncode, '"wrong": ""' in done.stdout) == (0, True), done


def test_verdicts_do_not_depend_on_load(server: Server) -> None:
    """0.4 s of processor time under a limit of 2 s, sixteen asked at a time, beside a load of four for each core."""
    spin = "import time\nwhile time.process_time() < 0.4: pass\nprint('done')"
    cores = len(os.sched_getaffinity(0))
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * cores)]
    try:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: ran(server, spin, run_timeout=2), range(8)))
    finally:
        for one in load:
            one.kill()
            one.wait()
    assert [answer["status"] for answer in answers] == ["Success"] * 8


TWO_SLEEP = "import os, time\nif not os.fork(): os.setsid()\nos.execv('/bin/sleep', ['sleep', '{mark}'])"


def test_where_there_is_no_wall_nothing_runs(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rlbox.sandbox", "probe", "--scratch", str(tmp_path), "--layers", "none"]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (refused.returncode, '"limits only"' in refused.stdout, "has no wall" in refused.stdout) == (1, True, True)


def children(pid: int) -> list[int]:
    return [int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()]


@pytest.mark.parametrize("layers", [LAYERS, LAYERS[:3]], ids="+".join)
def test_killed_worker_leaves_nothing(layers: tuple[str, ...], tmp_path: Path) -> None:
    one, mark = Server(tmp_path, ["--layers", ",".join(layers)]), "75312468"
    try:
        with ThreadPoolExecutor(1) as pool:
            response = pool.submit(ran, one, TWO_SLEEP.format(mark=mark))
            while len(sleepers(mark)) < 2:
                time.sleep(0.02)
            (worker,) = children(one.process.pid)
            os.kill(worker, signal.SIGKILL)
            assert response.result(30)["status"] == "SandboxError"
        assert sleepers(mark) == []
        assert ran(one, "print(1)")["status"] == "Success"
    finally:
        one.stop()
    assert (groups(one), list(tmp_path.iterdir())) == ([], [])


def test_worker_killed_between_requests_is_replaced(tmp_path: Path) -> None:
    one = Server(tmp_path, [])
    try:
        (worker,) = children(one.process.pid)
        os.kill(worker, signal.SIGKILL)
        while goes_on(worker):  # its command line is gone before the server can see that it ended
            time.sleep(0.01)
        assert ran(one, "print(1)")["status"] == "Success"
    finally:
        one.stop()
    assert groups(one) == []


def test_nothing_outlives_a_killed_server(tmp_path: Path) -> None:
    one, mark = Server(tmp_path, []), "86421357"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ran, one, TWO_SLEEP.format(mark=mark))
        while len(sleepers(mark)) < 2:
            time.sleep(0.02)
        one.process.kill()
        one.process.wait()
        with pytest.raises(ConnectionError):
            asked.result(30)
    for _ in range(500):
        if not sleepers(mark):
            return
        time.sleep(0.02)
    pytest.fail("programs outlive the sandbox")


def sleepers(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == b"sleep\0" + mark.encode() + b"\0":
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize("layers", [LAYERS, LAYERS[:3]], ids="+".join)
def test_a_sample_of_attacks(layers: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all layers, and as in a rented container."""
    monkeypatch.setenv("RLBOX_ATTACK_FOLDER", str(tmp_path))
    quick = [attack for attack in attacks() if not attack.slow]
    found = run(quick[len(layers) :: 20], ["--layers", ",".join(layers)], at_once=4)
    wanted = [layer for layer in layers if layer != CGROUP or CGROUP in found["strength"]]  # not every machine has it
    assert (found["fell"], found["strength"]) == ([], "+".join(wanted))


def groups(server: Server) -> list[str]:
    return [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/rlbox-sandbox-{server.process.pid}-*")]


HIDES = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if not os.fork():
        until = time.process_time() + 0.005
        while time.process_time() < until: pass
        os._exit(0)
    time.sleep(0.006)
"""
SPIKE = """
import os, time
for _ in range(8):
    if not os.fork():
        x = bytearray(96 << 20)
        os._exit(0)
time.sleep(30)
"""


def test_a_control_group_bounds_what_no_look_sees(server: Server) -> None:
    """Children that end unseen count; a burst of memory between two looks ends. Where there is none, it is said."""
    told = ran(server, "print(1)")["rlbox"]
    if CGROUP not in told["strength"]:
        assert CGROUP in told["missing"]
        return
    hidden = ran(server, HIDES, run_timeout=1)
    assert (hidden["rlbox"]["limit"], hidden["run_result"]["status"]) == ("cpu", "TimeLimitExceeded")
    spike = ran(server, SPIKE, memory_limit_MB=128)
    assert spike["rlbox"]["limit"] == "memory"
    after = ran(server, "print(1)", memory_limit_MB=128)
    assert (after["rlbox"]["limit"], after["rlbox"]["cpu_s"] < 1) == ("", True)


def test_too_many_tasks_end_a_program(server: Server) -> None:
    code = "import threading, time\nfor _ in range(99): threading.Thread(target=time.sleep, args=(9,)).start()"
    assert ran(server, code)["rlbox"]["limit"] == "tasks"


def test_interpreter_below_tmp_runs(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "scratch").mkdir()
    python, between = tmp_path / "venv/bin/python", tmp_path / "between/python"
    between.parent.mkdir()
    between.symlink_to(python.resolve())
    python.unlink()
    python.symlink_to(between)  # as to the interpreter of a venv which made this one
    one = Server(tmp_path / "scratch", ["--python", str(tmp_path / "venv/bin/python")])
    try:
        response = ran(one, "import sys\nprint(sys.prefix)\nopen(f'{sys.prefix}/x', 'w')")
    finally:
        one.stop()
    assert response["run_result"]["stdout"] == f"{tmp_path}/venv\n"
    assert "Permission denied" in response["run_result"]["stderr"]


def test_without_a_control_group_the_tree_is_added_up(tmp_path: Path) -> None:
    one = Server(tmp_path, ["--layers", ",".join(layer for layer in LAYERS if layer != CGROUP)])
    try:
        answer = ran(one, "import os\nos.fork(), os.fork()\nwhile True: pass", run_timeout=0.5)
        assert (CGROUP in answer["rlbox"]["strength"], answer["rlbox"]["limit"]) == (False, "cpu")
    finally:
        one.stop()
