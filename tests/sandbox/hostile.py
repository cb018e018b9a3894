"""Programs that mean harm, generated over families: cheats that must not be accepted, deeds that must not succeed.

A cheat is code for POST /check; the tests that it is checked with want values that nobody can guess. A deed is code for
POST /run_code that prints ESCAPED when it did what it must not. `{NAME}` in code is a word of the arena it runs in.
Standard library only: it runs in bare containers, too.
"""

# ruff: noqa: E501 a program a line
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cheats import CHEATS

WANTED = "wanted-7f1c9e55"
TESTS = f"""
def check(candidate):
    assert candidate(3) == "{WANTED}-" + "3" * 3
    assert candidate([1, 2]) == ["{WANTED}", 3]
    assert abs(candidate(0.5) - 0.7125) < 1e-9
    assert not candidate("")
check(f)
"""
LEFT = "rlbox-attack-left"


@dataclass(frozen=True)
class Attack:
    """One program; `more` are further fields of its request, `slow` says that it takes its whole time."""

    name: str
    path: str
    code: str
    more: dict[str, Any] = field(default_factory=dict)
    slow: bool = False


def attacks() -> list[Attack]:
    """Return all of them; no two have one name."""
    found = [*_endings(), *_liars(), *_forgers(), *_readers(), *_reaching(), *_changing(), *_signals(), *_network()]
    return [*found, *_leaving(), *_bombs(), *_kernel(), *_asking(), *_looking_away(), *_hiding(), *_crossing()]


def _cheat(name: str, code: str, slow: bool = False) -> Attack:
    return Attack(name, "/check", code, {"tests": TESTS, "run_timeout": 2}, slow)


def _deed(name: str, code: str, slow: bool = False, **more: Any) -> Attack:
    return Attack(name, "/run_code", code, {"language": "python", "run_timeout": 2, **more}, slow)


def _tried(name: str, code: str, **more: Any) -> Attack:
    """A deed that has escaped when its last expression is true and nothing was raised."""
    *first, last = code.strip().splitlines()
    lines = ["import os, sys, ctypes, signal", "libc = ctypes.CDLL(None)", "try:"]
    lines += [f"    {line}" for line in (*first, f"if {last}: print('ESCAPED')")]
    return _deed(name, "\n".join([*lines, "except BaseException as e: print(type(e), e)"]), **more)


def _looking_away() -> Iterator[Attack]:
    for name, code, tests in CHEATS:
        yield Attack(f"tests that look away: {name}", "/check", code, {"tests": tests, "run_timeout": 2})


def _hiding() -> Iterator[Attack]:
    """What is held where a look does not see it: 400 MB or 16 MB a time, far above the limit."""
    yield _deed("hide memory behind a thread that ended",
        "import os, ctypes, threading, time\nr, w = os.pipe()\n"
        "def hold():\n    time.sleep(.3); x = b'1' * (400 << 20); os.write(w, b'x'); time.sleep(99)\n"
        "for i in range(6):\n    if not os.fork():\n        threading.Thread(target=hold).start()\n"
        "        ctypes.CDLL(None).pthread_exit(0)\nfor i in range(4): os.read(r, 1)\ntime.sleep(.3)\nprint('ESCAPED')",
        run_timeout=9, slow=True)  # fmt: skip
    start = "import os, ctypes, socket, threading, time\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\nkept = []\na, b = socket.socketpair()\n"
    start += "def deleted():\n    fd = os.open('f', 66)\n    os.unlink('f')\n    for j in range(16): os.write(fd, b'x' * (1 << 20))\n    return fd\n"
    start += "def go():\n    for i in range(20):\n        fd = deleted()\n        {way}\n        time.sleep(.02)\n    time.sleep(.3)\n    os.write(1, b'ESCAPED')\n    os._exit(0)\n"
    ways = {
        "in memory": "libc.mmap(None, 4096, 1, 1, fd, 0); os.close(fd)",
        "on its way": "socket.send_fds(a, [b'x'], [fd]); os.close(fd)",
    }
    for name, way in ways.items():
        yield _deed(f"hide files {name}", f"{start.replace('{way}', way)}go()", run_timeout=4)
    thread = "threading.Thread(target=lambda: (time.sleep(.1), go())).start()\nlibc.pthread_exit(0)"
    yield _deed(
        "hide files behind a thread that ended", start.replace("{way}", "kept.append(fd)") + thread, run_timeout=4
    )
    yield _tried(
        "hide a large file", "libc.fallocate(os.open('f', 66), 1, ctypes.c_long(0), ctypes.c_long(4 << 30)) == 0"
    )
    yield _tried(
        "hide many large files",
        "n = [libc.fallocate(os.open(f'f{i}', 66), 0, ctypes.c_long(0), ctypes.c_long(60 << 20)) for i in range(40)]\n0 in n[20:]",
    )
    yield _tried("hide from looks", "libc.inotify_init1(0) >= 0")
    yield _tried("hide from looks by dnotify", "libc.fcntl(os.open('.', 0), 1026, 0x80000001) == 0")


def _crossing() -> Iterator[Attack]:
    """Ways to other processes, around the limits, and to what the checker has."""
    ways = {
        "write the parent's memory": "open(f'/proc/{os.getppid()}/mem', 'r+b').read(1) or True",
        "write own memory by its file": "open('/proc/self/mem', 'r+b') and True",
        "a descriptor of the parent": "libc.syscall(438, libc.syscall(434, os.getppid(), 0), 0, 0) >= 0",
        "trace a neighbour": "any(libc.ptrace(16, os.getpid() + n, 0, 0) == 0 for n in range(-9, 9) if n)",
        "memory of a neighbour": "any(libc.process_vm_readv(os.getpid() + n, b, 1, b, 1, 0) >= 0 for n in range(-9, 0) for b in [(ctypes.c_uint64 * 2)()])",
        "a session keyring": "libc.syscall(250, 1, b'{LEFT}') >= 0",
        "request a key": "libc.syscall(249, b'user', b'{LEFT}', b'', -3) >= 0",
        "fanotify": "libc.syscall(300, 0, 0) >= 0",
        "a program in memory": "os.memfd_create('x') >= 0",
        "secret memory": "libc.syscall(447, 0) >= 0",
        "io_uring by register": "libc.syscall(427, -1, 33, 0, 0) >= 0",
        "namespaces of init": "libc.setns(os.open('/proc/1/ns/mnt', 0), 0) == 0",
        "namespaces of a child": "libc.syscall(56, 0x20000000 | 17, 0, 0, 0, 0) >= 0",
        "limits of a child up": "pid = os.fork()\npid or (__import__('time').sleep(1), os._exit(0))\n__import__('resource').prlimit(pid, 7, (4096, 4096)) and True",
        "descriptors over a pair": "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0]) and True",
        "a new session": "os.setsid()\nos.getsid(0) == os.getpid() and os.getpgid(0) != os.getsid(0)",
        "a group of its own": "p = os.fork()\np or (__import__('time').sleep(1), os._exit(0))\nos.setpgid(p, p)\nos.getpgid(p) == p",
        "its group": "os.killpg(0, 0) or True",
        "the cgroup's door": "open('/sys/fs/cgroup/cgroup.procs', 'w').write(str(os.getpid()))",
        "its own filter off": "libc.prctl(22, 0, 0, 0, 0) == 0 or libc.syscall(317, 1, 0, 0) == 0",
        "capabilities back": "libc.syscall(126, (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(-1, -1, 0, -1, -1, 0)) == 0",
        "a file by its handle": "libc.syscall(303, -100, b'/', (ctypes.c_uint32 * 40)(128), (ctypes.c_int * 1)(), 0) >= 0",
        "user dispatch": "libc.prctl(59, 1, 0, 0, 0) == 0",
    }  # fmt: skip
    for name, code in ways.items():
        yield _tried(f"cross {name}", code)
    patches = {
        "peer": "p = sys.modules['peer']\np.Peer._decode = lambda s, v: 'wanted'\np.Remote.__eq__ = lambda s, o: True",
        "wire of the checker": "w = sys.modules['wire']\nw.decode_value = lambda v, f: True",
        "at exit": "import atexit\natexit.register(lambda: os.write(1, b'0 passed'))\natexit.register(os._exit, 0)",
        "questions": "import gc\nc = next(o for o in gc.get_objects() if type(o).__name__ == '_Candidate')\nc.questions.put(None)",
        "neighbours": "import signal\nfor n in range(1, 99):\n    try: os.kill(os.getpid() - n, 9)\n    except OSError: pass",
        "checker's descriptors": "for n in range(-9, 9):\n  for d in (4, 5):\n    try: os.write(os.open(f'/proc/{os.getpid() + n}/fd/{d}', 2), b'passed')\n    except OSError: pass",
    }  # fmt: skip
    for name, code in patches.items():
        yield _cheat(f"cross to {name}", f"import sys, os\n{code}\ndef f(x):\n    return x")


def _endings() -> Iterator[Attack]:
    ends = {
        "SystemExit": "raise SystemExit(0)",
        "sys.exit": "import sys; sys.exit(0)",
        "_exit": "import os; os._exit(0)",
        "kill": "import os; os.kill(os.getpid(), 9)",
        "abort": "import os; os.abort()",
        "exec": "import os; os.execv('/bin/true', ['true'])",
        "stop": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    }
    places = {
        "at once": "{end}",
        "when called": "def f(x):\n    {end}",
        "at exit": "import atexit\ndef g():\n    {end}\natexit.register(g)\nraise SystemExit",
        "in a thread": "import threading, time\ndef g():\n    {end}\nthreading.Thread(target=g).start()\ntime.sleep(.2)",
    }
    for place, text in places.items():
        for end, code in ends.items():
            yield _cheat(f"end {end} {place}", text.replace("{end}", code), slow=end == "stop")


def _liars() -> Iterator[Attack]:
    bodies = {
        "equals all": "__eq__ = lambda s, o: True\n    __hash__ = lambda s: 0",
        "never unequal": "__eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n    __hash__ = lambda s: 0",
        "numbers": "__sub__ = __rsub__ = __abs__ = lambda *a: 0\n    __lt__ = lambda s, o: True\n"
        "    __eq__ = lambda s, o: True\n    __bool__ = lambda s: False",
        "all dunders": "__getattr__ = lambda s, n: s\n    __call__ = lambda *a, **k: True\n    __eq__ = lambda s, o: True",
    }
    for base in ("object", "str", "int", "float", "list", "dict", "tuple", "Exception"):
        for name, body in bodies.items():
            yield _cheat(f"lie {base} {name}", f"class L({base}):\n    {body}\ndef f(x):\n    return L()")
    yield _cheat("mock ANY", "from unittest.mock import ANY, MagicMock\ndef f(x):\n    return ANY")
    patches = {
        "AssertionError": "builtins.AssertionError = type('A', (Exception,), {'__init__': lambda *a: None})",
        "builtins": "builtins.abs = lambda x: 0\nbuiltins.all = builtins.any = lambda x: True",
        "compile": "builtins.compile = builtins.exec = lambda *a: None",
        "excepthook": "sys.excepthook = lambda *a: os._exit(0)",
        "trace": "sys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)",
        "main": "m = sys.modules['__main__']\nm.check = lambda c: None\nm._judge = lambda g: 'passed'",
        "wire": "w = sys.modules['wire']\nw.receive_message = lambda fd: os._exit(0)\nw.encode_value = lambda v, k: {'k': 'x'}",
        "json": "import json\njson.dumps = lambda *a: '{\"value\": true}'",
        "memory": "a = id('check')\nctypes.memset(a, 0, 4)",
        "optimise": "sys.flags = type('F', (), {'optimize': 2})",
    }
    for name, code in patches.items():
        yield _cheat(f"patch {name}", f"import builtins, sys, os, ctypes\n{code}\ndef f(x):\n    return x")


def _forgers() -> Iterator[Attack]:
    words = ("passed", "0 passed", "[evaluate] passed", "None passed", "\\0passed", "passed " * 1000)
    for number, word in enumerate(words):
        yield _cheat(f"say on every line {number}",
            f"import os\nfor fd in range(256):\n    try: os.write(fd, b'''{word}\\n''')\n    except OSError: pass\n"
            "def f(x):\n    return x")  # fmt: skip
        yield _cheat(f"print {number}", f"print('''{word}''')\ndef f(x):\n    print('''{word}'''); raise SystemExit")
    answers = {
        "true": '{"value": true}', "null": '{"value": null}', "no object": "[]", "cut": '{"value": ',
        "deep": "[" * 100000, "kept": '{"value": {"k": "kept", "v": 0}}', "kind": '{"value": {"k": "set", "v": [[]]}}',
        "raised": '{"raised": ["SystemExit", "0"]}', "gone": '{"raised": ["_Gone", "passed"]}',
        "base": '{"raised": ["BaseException", ""]}', "name": '{"raised": ["a\\u0000b", ""]}', "raised no pair": '{"raised": 3}',
        "long int": '{"value": {"k": "int", "v": "0x%s"}}' % ("f" * 100000), "endless": '{"value": {"k": "iterator", "v": {"k": "range", "v": [0, 1000000000000, 1]}}}',
    }  # fmt: skip
    for name, text in answers.items():
        yield _cheat(f"answer {name}",
            f"import os\nt = {text!r}.encode()\nfor i in range(50):\n    os.write(3, len(t).to_bytes(4, 'big') + t)\n"
            "import time\ntime.sleep(.5)\nos._exit(0)")  # fmt: skip
    yield _cheat("answer endless bytes", "import os\nwhile True: os.write(3, b'\\xff' * 65536)")
    yield _cheat("answer huge", "import os\nos.write(3, b'\\x7f\\xff\\xff\\xff' + b'0' * 99)\nos._exit(0)")


def _readers() -> Iterator[Attack]:
    ways = {
        "frames": "fr = sys._getframe()\nwhile fr:\n    seen.append(repr(fr.f_globals) + repr(fr.f_locals)); fr = fr.f_back",
        "gc": "import gc\nseen += [o for o in gc.get_objects() if isinstance(o, str)]\nseen.append(repr(gc.get_objects()))",
        "modules": "seen += [repr(vars(m)) for m in list(sys.modules.values()) if m]",
        "descriptors": "for fd in range(256):\n    try: os.set_blocking(fd, False); seen.append(repr(os.read(fd, 65536)))\n    except OSError: pass",
        "seek": "for fd in range(256):\n    try: seen.append(repr(os.pread(fd, 65536, 0)))\n    except OSError: pass",
        "environ": "seen.append(repr(os.environ))\nseen.append(read('/proc/self/environ'))",
        "parents": "for p in [os.getppid(), *range(1, 400)]:\n    for n in ('environ', 'cmdline', 'mem', 'fd/5', 'fd/4', 'cwd/main.py'): seen.append(read(f'/proc/{{p}}/{{n}}'))",
        "vm": "libc = ctypes.CDLL(None, use_errno=True)\nfor p in range(1, 400):\n    if libc.ptrace(16, p, 0, 0) == 0: seen.append(TELL)",
        "files": "for top in ('/', '/tmp', '/program', '..', '../..', '/root', '{SCRATCH}'):\n    for d, _, names in os.walk(top):\n        if d.startswith(('/proc', '/sys', '/usr')): continue\n        for n in names[:99]: seen.append(read(os.path.join(d, n))[:9999])",
        "source": "seen += [read(p + '/checker.py') + read(p + '/given') for p in sys.path]",
    }  # fmt: skip
    start = "import os, sys, ctypes, re\nseen = []\nTELL = 'x'\ndef read(p):\n    try: return open(p, errors='replace').read(1 << 20)\n    except OSError: return ''\n"
    end = (
        "\nfound = re.search('wanted-[0-9a-f]+', ' '.join(s for s in seen if 'found = re' not in s))\n"
        "w = found.group() if found else ''\n"
        "def f(x):\n    return {3: w + '-333', 0.5: 0.7125, '': ''}.get(x) if not isinstance(x, list) else [w, 3]\n"
    )
    for name, code in ways.items():
        yield _cheat(f"read tests {name}", start + code + end)


def _reaching() -> Iterator[Attack]:
    ways = {
        "own environment": "'HF_TOKEN' in os.environ or 'hunter2' in repr(os.environ)",
        "server's environment": "b'hunter2' in open('/proc/{SERVER}/environ', 'rb').read()",
        "all environments": "any(b'hunter2' in open(f'/proc/{p}/environ', 'rb').read() for p in os.listdir('/proc') if p.isdigit())",
        "parent's memory": "open(f'/proc/{os.getppid()}/mem', 'rb').read(1) or True",
        "data disk": "open('{CANARY}').read()",
        "data disk by link": "os.symlink('{CANARY}', 'l')\nopen('l').read()",
        "data disk by hard link": "os.link('{CANARY}', 'l')\nopen('l').read()",
        "data disk listed": "os.listdir('{DATA}')",
        "passwd": "open('/etc/passwd').read()",
        "shadow": "open('/etc/shadow').read()",
        "home": "os.listdir('/root')",
        "other requests": "os.listdir('{SCRATCH}')",
        "devices": "os.open('/dev/sda', 0) or os.open('/dev/mem', 0) or True",
        "kernel": "open('/proc/kallsyms').read(9) or open('/sys/kernel/notes').read(9)",
        "root of init": "os.listdir('/proc/1/root')",
        "cgroup": "os.mkdir('/sys/fs/cgroup/{LEFT}') or True",
        "up and up": "os.chdir('../../../../../..')\nos.path.exists('data') and open('{CANARY}').read()",
    }  # fmt: skip
    for name, code in ways.items():
        yield _tried(f"reach {name}", code)
    yield _deed("fetch through a link", "import os\nos.symlink('{CANARY}', 'out')", fetch_files=["out"])
    yield _deed("fetch through a folder link", "import os\nos.symlink('{DATA}', 'out')", fetch_files=["out/checkpoint"])
    yield _deed("fetch a pipe", "import os\nos.mkfifo('out')", fetch_files=["out"])


def _changing() -> Iterator[Attack]:
    ways = {
        "write": "open('{CANARY}', 'a').write('x')", "cut": "os.truncate('{CANARY}', 0) or True",
        "remove": "os.unlink('{CANARY}') or True", "rename": "os.rename('{CANARY}', 'mine') or True",
        "create beside": "open('{DATA}/{LEFT}', 'w') and True", "folder beside": "os.mkdir('{DATA}/{LEFT}') or True",
        "create in tmp": "os.chdir('/')\nopen('{SCRATCH}/{LEFT}', 'w') and True",
        "var tmp": "open('/var/tmp/{LEFT}', 'w') and True", "usr": "open('/usr/{LEFT}', 'w') and True",
        "interpreter": "open(sys.prefix + '/{LEFT}', 'w') and True",
        "library": "open(os.__file__, 'a') and True",
    }  # fmt: skip
    for name, code in ways.items():
        yield _tried(f"change {name}", code)
    # these may say that they did it: what counts is that nothing is changed
    quiet = ("chmod('{CANARY}', 0)", "chown('{CANARY}', 7, 7)", "utime('{CANARY}', (1, 1))", "chmod('{DATA}', 0)",
             "setxattr('{CANARY}', 'user.a', b'b')", "chmod(os.__file__, 0)", "utime(os.__file__, (1, 1))")  # fmt: skip
    for number, code in enumerate(quiet):
        yield _deed(f"change quietly {number}", f"import os\nos.{code}")


def _signals() -> Iterator[Attack]:
    goals = {"server": "{SERVER}", "bystander": "{BYSTANDER}", "parent": "os.getppid()", "everybody": "-1", "init": "1"}
    for name, pid in goals.items():
        for number in (9, 15, 19, 1):
            yield _deed(f"signal {number} {name}", f"import os\nfor i in range(3): os.kill({pid}, {number})")
    for name, pid in list(goals.items())[:3]:
        yield _tried(f"pidfd {name}", f"fd = os.pidfd_open({pid})\nsignal.pidfd_send_signal(fd, 9) or True")
        yield _deed(
            f"queue {name}",
            f"import os, ctypes\nb = (ctypes.c_char * 128)()\nctypes.CDLL(None).syscall(129, {pid}, 9, b)",
        )
        yield _deed(f"limits of {name}", f"import os, resource\nresource.prlimit({pid}, resource.RLIMIT_CPU, (0, 0))")
        yield _deed(f"files of {name}", f"import os, resource\nresource.prlimit({pid}, resource.RLIMIT_NOFILE, (0, 0))")
        yield _deed(f"trace {name}", f"import os, ctypes\nctypes.CDLL(None).ptrace(16, {pid}, 0, 0)")
        yield _deed(f"owner {name}",
            f"import os, fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, 8, {pid})\nfcntl.fcntl(r, 10, 9)\n"
            "fcntl.fcntl(r, 4, os.O_ASYNC)\nos.write(w, b'x')")  # fmt: skip
        yield _deed(
            f"priority {name}",
            f"import os\nos.setpriority(os.PRIO_PROCESS, {pid}, 19)\nos.sched_setaffinity({pid}, [0])",
        )
    yield _deed(
        "signal groups", "import os\nfor p in range(1, 3000):\n    try: os.killpg(p, 9)\n    except OSError: pass"
    )


def _network() -> Iterator[Attack]:
    head = "import socket\n"
    yield _tried("tcp", head + "s = socket.create_connection(('127.0.0.1', {TCP}), 1)\ns.send(b'x')")
    yield _tried("tcp v6", head + "s = socket.socket(socket.AF_INET6)\ns.connect(('::1', {TCP})) or True")
    yield _tried(
        "udp", head + "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.sendto(b'x', ('127.0.0.1', {TCP}))"
    )
    yield _tried("raw", head + "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) and True")
    yield _tried("packet", head + "socket.socket(17, 3, 0) and True")
    yield _tried("netlink", head + "socket.socket(16, 3, 0) and True")
    yield _tried("unix", head + "s = socket.socket(socket.AF_UNIX)\ns.connect('{UNIX}') or True")
    yield _tried("abstract", head + "s = socket.socket(socket.AF_UNIX)\ns.connect('\\0{ABSTRACT}') or True")
    yield _tried("listen", head + "s = socket.create_server(('0.0.0.0', 0))\ns.listen() or True")
    yield _tried("vsock", head + "socket.socket(40, 1) and True")
    yield _tried("names", head + "socket.getaddrinfo('example.org', 80)")
    yield _tried(
        "itself", head + "s = socket.create_connection(('127.0.0.1', {PORT}), 1)\ns.send(b'GET / HTTP/1.0\\r\\n\\r\\n')"
    )
    for name, address in {"path": "'{UNIX}.datagrams'", "abstract": "'\\0{ABSTRACT}.datagrams'"}.items():
        for way in (f"sendto(b'x', {address})", f"sendmsg([b'x'], [], 0, {address})"):
            yield _tried(f"pair of datagrams, {name}, {way[:7]}",
                f"{head}a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.{way}")  # fmt: skip
    yield _tried("pair as udp", head + "a, b = socket.socketpair()\na.sendto(b'x', ('127.0.0.1', {TCP}))")


def _leaving() -> Iterator[Attack]:
    for name, before in {"": "", " in a session": "os.setsid()", " deaf": "[signal.signal(n, signal.SIG_IGN) for n in range(1, 32) if n not in (9, 19)]",
                         " unseen": "signal.signal(17, signal.SIG_IGN)"}.items():  # fmt: skip
        for depth in (1, 2, 5):
            yield _deed(f"leave a child {depth} deep{name}",
                f"import os, time, signal\nfor i in range({depth}):\n    if os.fork(): os._exit(0)\n    {before or 'pass'}\n"
                "os.execv('/bin/sleep', ['sleep', '{NAP}'])")  # fmt: skip
    yield _deed(
        "leave by subprocess",
        "import subprocess\nfor i in range(20): subprocess.Popen(['/bin/sleep', '{NAP}'], start_new_session=True)",
    )
    yield _deed(
        "leave a stopped child",
        "import os, signal\nif not os.fork():\n    os.kill(os.getpid(), signal.SIGSTOP)\nimport time; time.sleep(.1)",
    )
    yield _tried("leave shared memory", "libc.shmget(77, 4096, 0o1666) >= 0")
    yield _tried("leave a semaphore", "libc.semget(77, 1, 0o1666) >= 0")
    yield _tried("leave a queue", "libc.msgget(77, 0o1666) >= 0")
    yield _tried("leave a key", "libc.syscall(248, b'user', b'{LEFT}', b'x', 1, -3) >= 0")
    yield _deed(
        "leave files",
        "for d in ('/tmp', '/dev/shm', '/var/tmp', '/run', '/'):\n    try: open(d + '/{LEFT}', 'w').write('x')\n    except OSError: pass",
    )
    yield _deed("leave deep folders", "import os\nfor i in range(3000):\n    os.mkdir('d'); os.chdir('d')")
    yield _deed(
        "leave a locked folder",
        "import os\nos.makedirs('a/b')\nos.mkdir('a/c', 0)\nopen('a/b/x', 'w')\nos.chmod('a', 0)",
    )
    yield _deed(
        "children that outrun",
        "import os\nwhile True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: os._exit(0)",
        slow=True,
    )


def _bombs() -> Iterator[Attack]:
    forks = {"plain": "os.fork()", "sessions": "os.fork() or os.setsid()", "vfork": "subprocess.Popen(['/bin/sleep', '99'])",
             "threads": "threading.Thread(target=time.sleep, args=(99,)).start()"}  # fmt: skip
    for name, code in forks.items():
        yield _deed(
            f"bomb fork {name}",
            f"import os, subprocess, threading, time\nwhile True:\n    try: {code}\n    except Exception: pass",
            slow=True,
        )
    yield _deed("bomb shell", ":(){ :|:& };:; sleep 5", slow=True, language="bash")
    memory = {
        "one": "x = bytearray(3 << 30)", "list": "x = []\nwhile True: x.append(bytearray(b'1' * (8 << 20)))",
        "many": "import os, time\nfor i in range(8):\n    if not os.fork():\n        x = bytearray(b'1' * (400 << 20)); time.sleep(9)\ntime.sleep(9)",
        "mmap": "import mmap\nx = [mmap.mmap(-1, 64 << 20) for i in range(99)]\nfor m in x:\n    for i in range(0, len(m), 4096): m[i] = 1",
        "shared files": "import mmap, os\nx = []\nfor i in range(99):\n    f = open(f'f{i}', 'wb+'); os.unlink(f'f{i}'); f.truncate(32 << 20); x.append(mmap.mmap(f.fileno(), 0))\nfor m in x:\n    for i in range(0, len(m), 4096): m[i] = 1",
        "pipes": "import os, fcntl\nx = [os.pipe() for i in range(120)]\nfor r, w in x:\n    os.set_blocking(w, False)\n    try:\n        fcntl.fcntl(w, 1031, 1 << 20)\n        while True: os.write(w, b'x' * 65536)\n    except OSError: pass",
        "memfd": "import os\nx = [os.memfd_create('a') for i in range(99)]\nfor f in x: os.write(f, b'x' * (32 << 20))",
        "recursion": "import sys\nsys.setrecursionlimit(1 << 30)\nf = lambda: f()\nf()",
    }  # fmt: skip
    for name, code in memory.items():
        yield _deed(f"bomb memory {name}", code)
    for name, code in {"stdout": "while True: print('x' * 9999)", "stderr": "import sys\nwhile True: sys.stderr.write('x' * 9999)",
                       "both": "import os\nwhile True: os.write(1, b'x' * 9999); os.write(2, b'y' * 9999)",
                       "children": "import os\nos.fork(); os.fork()\nwhile True: os.write(1, b'x' * 65536)"}.items():  # fmt: skip
        yield _deed(f"bomb output {name}", code)
    disk = {
        "file": "f = open('f', 'wb')\nwhile True: f.write(b'x' * (1 << 20))",
        "files": "for i in range(999): open(f'f{i}', 'wb').write(b'x' * (1 << 20))",
        "deleted": "import os\nx = []\nfor i in range(200):\n    f = open('f', 'wb'); os.unlink('f'); f.write(b'x' * (16 << 20)); f.flush(); x.append(f)",
        "names": "for i in range(10 ** 6): open(f'n{i}', 'w').close()",
        "holes": "import os\nos.posix_fallocate(os.open('f', 66), 0, 1 << 40)",
        "tmp": "for d in ('/tmp', '/dev/shm', '.'):\n    for i in range(200): open(f'{d}/{LEFT}-{i}', 'wb').write(b'x' * (1 << 20))",
    }  # fmt: skip
    for name, code in disk.items():
        yield _deed(f"bomb disk {name}", code)
    for name, code in {"sleep": "import time; time.sleep(999)", "pause": "import signal; signal.pause()", "spin": "while True: pass",
                       "input": "import os\nr, w = os.pipe()\nos.read(r, 1)",
                       "vfork": "import os\nos.mkfifo('l')\nos.posix_spawn('/bin/true', ['x'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, 'l', 0, 0)])",
                       "spin deaf": "import signal\n[signal.signal(n, signal.SIG_IGN) for n in (15, 24)]\nwhile True: pass",
                       "spin in children": "import os, signal\nsignal.signal(17, signal.SIG_IGN)\nwhile True:\n    if not os.fork():\n        for i in range(10 ** 6): pass\n        os._exit(0)\n    import time; time.sleep(.02)"}.items():  # fmt: skip
        yield _deed(f"bomb time {name}", code, slow=True)


def _kernel() -> Iterator[Attack]:
    calls = {
        "unshare": "libc.unshare(0x10000000) == 0", "unshare mounts": "libc.unshare(0x20000) == 0",
        "clone": "libc.syscall(56, 0x10000011, 0, 0, 0, 0) >= 0", "clone3": "libc.syscall(435, (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17), 64) >= 0",
        "mount": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0", "chroot": "libc.chroot(b'.') == 0",
        "setuid": "os.setuid(0) or os.geteuid() == 0 and open('/etc/shadow').read()",
        "setgroups": "os.setgroups([0]) or True", "mknod": "os.mknod('d', 0o60666, os.makedev(8, 0)) or os.open('d', 0)",
        "bpf": "libc.syscall(321, 0, (ctypes.c_char * 128)(), 128) >= 0", "perf": "libc.syscall(298, (ctypes.c_char * 128)(112), 0, -1, -1, 0) >= 0",
        "io_uring": "libc.syscall(425, 8, (ctypes.c_char * 256)()) >= 0", "userfaultfd": "libc.syscall(323, 1) >= 0",
        "keyctl": "libc.syscall(250, 0, -3, 1) >= 0", "reboot": "libc.reboot(0) == 0", "x32": "libc.syscall(0x40000000 + 39) > 0",
        "dumpable": "libc.prctl(4, 0, 0, 0, 0) == 0", "death signal": "libc.prctl(1, 0, 0, 0, 0) == 0",
        "seccomp": "libc.prctl(22, 2, 0, 0, 0) == 0", "modules": "libc.syscall(175, b'', 0, b'') == 0",
        "sethostname": "libc.sethostname(b'x', 1) == 0", "settime": "libc.settimeofday((ctypes.c_long * 2)(1, 1), None) == 0",
        "handle": "libc.syscall(304, -100, (ctypes.c_char * 128)(), 0) >= 0", "core pattern": "open('/proc/sys/kernel/core_pattern', 'w') and True",
        "oom": "open('/proc/self/oom_score_adj', 'w').write('-1000')",
        "limits up": "__import__('resource').setrlimit(9, (-1, -1)) or True",
    }  # fmt: skip
    for name, code in calls.items():
        yield _tried(f"kernel {name}", code)
    yield _deed(
        "a setuid program",
        "import subprocess\nr = subprocess.run(['/bin/su', '-c', 'echo ESCAPED'], capture_output=True, input=b'', text=True)\nprint(r.stdout)",
    )


def _asking() -> Iterator[Attack]:
    greedy = (
        "import resource\nif resource.getrlimit(9)[0] > (1 << 30) or resource.getrlimit(9)[0] < 0: print('ESCAPED')"
    )
    for number, asked in enumerate((-1, 0, 1 << 20, 1e300)):
        yield _deed(f"ask for memory {number}", greedy, memory_limit_MB=asked)
    spin = "import time\nt = time.process_time()\nwhile time.process_time() - t < 31: pass\nprint('ESCAPED')"
    yield _deed("ask for time", spin, slow=True, run_timeout=1e9)
    for name in ("../{LEFT}", "/tmp/{LEFT}", "a/../../{LEFT}", "", ".", "a//b", "a\0b"):
        yield _deed(f"ask for a file {name!r}", "pass", files={name: "eA=="})
        yield _deed(f"ask to fetch {name!r}", "pass", fetch_files=[name])
    for language in ("../python", "ruby", "", "python\0"):
        yield _deed(f"ask for language {language!r}", "print('ESCAPED')" if language else "pass", language=language)
