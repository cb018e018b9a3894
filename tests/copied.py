"""Command lines that begin with what this process has imported: a copy of it goes on as the interpreter would have.

A second of imports is most of what a short verb costs on a slow core, and the tests type thousands. Each is still a
process of its own with its environment, folder, streams and signals. That it can begin alone is shown where it is begun
anew: in the tests of the command line, in the smoke, by the wheel. `RLBOX_TEST_ANEW=1` begins all of them anew.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import importlib
import io
import logging
import os
import pkgutil
import signal
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fakes import CHECKOUT

import rlbox
from rlbox.cli import main
from rlbox.config.project import Project
from rlbox.fixes.catalogue import load_fixes

ANEW = os.environ.get("RLBOX_TEST_ANEW")
MODULE = [sys.executable, "-m", "rlbox"]
CODE = [sys.executable, "-c"]
OF_A_START = ("PYTHON", "LC_", "LANG", "TZ", "LD_", "MALLOC_")
"""Variables that an interpreter, or the C library, reads when it starts."""


def copied(argv: Sequence[str], env: Mapping[str, str], groups: Sequence[Path] = ()) -> dict[str, Any]:
    """Return what `Popen` takes for a process of `argv` in `env` and in control groups that is a copy of this one.

    What needs a start of its own gets one.
    """
    words = list(argv)
    begin = functools.partial(enter, groups)
    if not ANEW and (words[:3] == MODULE or words[:2] == CODE) and _as_this_one(env):
        _imported()
        begin = functools.partial(_go_on, words, dict(env), groups)
    return {"args": words, "env": env, "preexec_fn": begin}


def _as_this_one(env: Mapping[str, str]) -> bool:
    """Whether an interpreter that is started in `env` would be as this one is."""
    if env.get("PYTHONPATH", "").split(os.pathsep)[0] not in ("", str(CHECKOUT)):
        return False
    read = {name for name in (*env, *os.environ) if name.startswith(OF_A_START)} - {"PYTHONPATH"}
    return all(env.get(name) == os.environ.get(name) for name in read)


@functools.cache
def _imported() -> None:
    """Import all but programs, and read the fixes that are shipped."""
    for module in pkgutil.walk_packages(rlbox.__path__, "rlbox."):
        if not (module.name.endswith(".__main__") or ".programs" in module.name):
            importlib.import_module(module.name)
    load_fixes(Project(folder=CHECKOUT))


def enter(groups: Sequence[Path]) -> None:
    """Enter control groups."""
    for group in groups:
        (group / "cgroup.procs").write_text(str(os.getpid()))


def _go_on(argv: list[str], env: dict[str, str], groups: Sequence[Path]) -> None:
    """Go on as the process of `argv`, and end as it would; this copy of the tests never goes on as one."""
    code = 1
    try:
        enter(groups)
        _forget(env)
        code = _carried_out(argv)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:
        traceback.print_exc()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
    finally:
        os._exit(code)


def _forget(env: dict[str, str]) -> None:
    """Be as an interpreter that has just begun: its streams, signals, environment, and nothing remembered of acts."""
    faulthandler.disable()
    os.closerange(3, 1 << 16)
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    logging.root.handlers.clear()
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    os.environ.clear()
    os.environ.update(env)
    for name, module in list(sys.modules.items()):
        if name.startswith("rlbox."):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(number, "w", closefd=False)),
            errors="backslashreplace" if number == 2 else "strict",
            line_buffering=number == 2 or os.isatty(number),
        )
        for number in (1, 2)
    )


def _carried_out(argv: list[str]) -> int:
    try:
        if argv[:3] == MODULE:
            sys.argv = ["rlbox", *argv[3:]]
            sys.exit(main())
        sys.argv = ["-c", *argv[3:]]
        main_module = types.ModuleType("__main__")
        sys.modules["__main__"] = main_module
        exec(compile(argv[2], "<string>", "exec"), vars(main_module))
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    return 0
