"""Programs that want to be accepted by tests that look away: that catch all, end a loop early, or are not carried out.

Rows of name, program, tests. Each must be wrong, failed or timeout, for no program here answers a single call right.
Standard library only: it runs in bare containers, too.
"""

# ruff: noqa: E501 a program a line
from __future__ import annotations

_NEVER = "def f(x):\n    return 0"
_UNIT = (
    "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(3), 'wanted-9')\n"
)
_SWAP = """import os, sys
for path in [*sys.path, sys.prefix, sys.base_prefix]:
    parts = path.strip("/").split("/")
    for n in range(1, len(parts) + 1):
        top = "/" + "/".join(parts[:n])
        try:
            os.rename(top, top + ".old")
            break
        except OSError: pass
for path in sys.path:
    try:
        os.makedirs(path, exist_ok=True)
        open(path + "/colorsys.py", "w").write("raise SystemExit(0)")
    except OSError: pass
def f(x): return 0"""

_LIAR = "class P:\n    __eq__ = __lt__ = __gt__ = __contains__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n    __hash__ = lambda s: 0\n"
_LIAR += "    __sub__ = __rsub__ = lambda s, o: s\n    __mul__ = lambda s, o: 0\n    __abs__ = lambda s: 0\ndef f(x): return P()"
_ASK = "import os, sys, time\ndef ask(do, at, name, *words):\n    import gc\n    peer = next(o for o in gc.get_objects() if type(o).__name__ == '_Candidate')\n"
_ASK += "    return peer.ask({'do': do, 'at': at, 'name': name, 'words': list(words)})\n"
_HANDS = "W = 'wanted'\ndef g(): return 'wanted'\nassert f(g) == W"

CHEATS = (
    # what the program raises must not end a loop of the tests as if all were well
    ("StopIteration in map", "def f(x):\n    raise StopIteration", "assert all(map(lambda c: f(c) == 'wanted', [1, 2]))"),
    ("StopIteration in zip", "def f(x):\n    raise StopIteration",
     "for got, want in zip(map(f, [1, 2]), ['q', 'r']):\n    assert got == want"),
    ("StopAsyncIteration", "def f(x):\n    raise StopAsyncIteration",
     "import asyncio\nclass I:\n    def __aiter__(self): return self\n    async def __anext__(self): return f(1)\n"
     "async def go():\n    async for x in I(): assert x == 'wanted'\nasyncio.run(go())"),
    # one that is gone has raised nothing, whatever the tests catch
    ("gone, all caught", "import os\ndef f(x): os._exit(0)", "try:\n    f(-1)\nexcept: pass\nelse: raise AssertionError"),
    ("ended, all caught", "def f(x): raise SystemExit",
     "ok = 0\ntry:\n    f(-1)\nexcept BaseException: ok = 1\nassert ok"),
    ("gone in a thread", "import os\ndef f(x): os._exit(0)",
     "import threading\ndef g(): assert f(1) == 'wanted'\nt = threading.Thread(target=g)\nt.start()\nt.join()"),
    ("line cut, all caught", "import socket\ns = socket.socket(fileno=3)\ndef f(x):\n    s.shutdown(2)",
     "try:\n    f(-1)\nexcept: pass"),
    ("garbage, all caught", "import os\ndef f(x): os.write(3, b'\\0\\0\\0\\2[]')", "try:\n    f(-1)\nexcept: pass"),
    # tests that nobody carries out, or that ask the program nothing
    ("check is not called", _NEVER, "def check(candidate):\n    assert candidate(3) == 'wanted'"),
    ("test functions", _NEVER, "def test_a():\n    assert f(3) == 'wanted'"),
    ("test functions and a plain value", "f = 3", "def test_a():\n    assert f(3) == 'wanted'"),
    ("unittest without main", _NEVER, _UNIT),
    ("no tests", _NEVER, ""),
    ("a builtin's name", "def sorted(x): return 1", "assert sorted([2, 1]) == [1, 2]"),
    # unittest must find the tests, and none of the program's own exceptions may skip one
    ("unittest", _NEVER, f"{_UNIT}unittest.main()"),
    ("unittest skip", "import unittest\ndef f(x): raise unittest.SkipTest", f"{_UNIT}unittest.main()"),
    ("unittest interrupt", "def f(x): raise KeyboardInterrupt", f"{_UNIT}unittest.main()"),
    # what the tests take for a module of theirs
    ("math of its own", "class math:\n    isclose = lambda *a: True\ndef f(x): return 0", "assert math.isclose(f(3), 9.5)"),
    ("numpy of its own", "class np:\n    allclose = lambda *a: True\ndef f(x): return 0", "assert np.allclose(f(3), 9.5)"),
    ("library put under the tests", _SWAP, "f(1)\nimport colorsys\nassert f(2) == 'wanted'"),
    ("twins that answer", "import os\nos.fork()\ndef f(x): return x", "assert f(1) == 'wanted'\nassert f(2) == 'wanted'"),
    ("exit in __del__", "import sys\nclass D:\n    def __del__(self): sys.exit(0)\ndef f(x):\n    D(); return x",
     "assert f(1) == 'wanted'"),
    ("numbers without end", "import os, time\nt = b'{\"value\": {\"k\": \"Decimal\", \"v\": \"1e999999999\"}}'\n"
     "for i in range(9): os.write(3, len(t).to_bytes(4, 'big') + t)\ntime.sleep(.5)", "assert f(1) == 1"),
    # operators of a class that the tests name must not decide a comparison with their values
    ("a named class equals all", _LIAR, "P()\nassert f(3) == 'wanted'"),
    ("a named class is close to all", _LIAR, "P()\nassert abs(f(3) - 0.5) < 1e-9"),
    ("a named class, squared", _LIAR, "P()\nd = f(3) - 0.5\nassert d * d < 1e-9"),
    ("a named class, ordered", _LIAR, "P()\nassert 0.4 < f(3) < 0.6"),
    ("a subclass of a named class", f"{_LIAR}\nclass Q(P): pass\ndef f(x): return Q()", "P()\nassert f(3) == 'wanted'"),
    # what the tests hand to the program must not lead to what they expect, and not be changed in its place
    ("globals of a handed function", "def f(g): return g.__globals__['W']", _HANDS),
    ("globals of a handed function, asked by hand", f"{_ASK}def f(g): return ask('get', 0, '__globals__')['W']", _HANDS),
    ("code of a handed function", "def f(g): return g.__code__.co_consts[1]", _HANDS),
    ("frame of a raised error", "def f(g):\n    try: g()\n    except Exception as e: return e.__traceback__.tb_frame.f_globals['W']",
     "W = 'wanted'\ndef g(): raise ValueError\nassert f(g) == W"),
    ("a handed class is changed", f"{_ASK}def f(i):\n    for n in range(9):\n        try: ask('set', n, 'value', 'wanted')\n"
     "        except Exception: pass", "class I: value = 'x'\nf(I())\nassert I.value == 'wanted'"),
    ("an instance of a class of the tests", f"{_ASK}def f(i):\n    t = b'{{\"talk\": \"c2\", \"value\": {{\"k\": \"mine\", \"v\": 90, \"of\": "
     "{\"k\": \"yours\", \"v\": 1}}}'\n    os.write(3, len(t).to_bytes(4, 'big') + t)\n    time.sleep(9)",
     "class I:\n    def __eq__(self, other): return True\nassert f(I()) == 'wanted'"),
    # answers that nobody asked for
    ("answers before the question", "import os\nfor n in range(9):\n    t = b'{\"talk\": \"c%d\", \"value\": \"wanted\"}' % n\n"
     "    os.write(3, len(t).to_bytes(4, 'big') + t)\ndef f(x): return 'wanted-not'", "assert f(1) == 'wanted'"),
    ("questions without end", f"{_ASK}def f(x):\n    for n in range(999):\n        t = b'{{\"talk\": \"p%d\", \"ask\": {{\"do\": \"get\", "
     "\"at\": 0, \"name\": \"x\"}}' % (n + 99)\n        os.write(3, len(t).to_bytes(4, 'big') + t)\n    return x",
     "assert f(1) == 'wanted'"),
    ("gone while a thread waits", "import os, threading\ndef f(x):\n    threading.Timer(.1, os._exit, (0,)).start()\n    threading.Event().wait()",
     "import threading\nt = threading.Thread(target=f, args=(1,))\nt.start()\nt.join()"),
)  # fmt: skip
