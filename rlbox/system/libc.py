"""The C library, for calls of the kernel that Python has no words for."""

from __future__ import annotations

import ctypes
import os
import signal

LIBC = ctypes.CDLL(None, use_errno=True)
_DEATH_SIGNAL, _SET_DUMPABLE, _SUBREAPER = 1, 4, 36


def _raise_if_negative(call_name: str, result: int) -> int:
    """Return what a call returned; `OSError` with the kernel's number and the call's name where it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call_name}: {os.strerror(number)}")
    return result


def syscall(error_label: str, number: int, *args: object) -> int:
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in args]
    return _raise_if_negative(error_label, int(LIBC.syscall(ctypes.c_long(number), *words)))


def prctl(error_label: str, *args: int) -> None:
    _raise_if_negative(error_label, int(LIBC.prctl(*(ctypes.c_ulong(one) for one in (*args, 0, 0, 0, 0)[:5]))))


def set_child_subreaper() -> None:
    prctl("adopt orphans", _SUBREAPER, 1)


def forbid_ptrace() -> None:
    """Keep other processes of this user out of this one: none can trace it, or open what it has open.

    Those with CAP_SYS_PTRACE still can. Source: prctl(2), PR_SET_DUMPABLE; ptrace(2), access mode checking.
    """
    prctl("guard memory", _SET_DUMPABLE, 0)


def set_parent_death_sigterm_die_if_orphaned(expected_parent_pid: int) -> None:
    """Have this process told to end when the thread of process `expected_parent_pid` that started it ends.

    The kernel tells of what ends from now on alone: where that has ended already, so does this process.
    """
    prctl("end with parent", _DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != expected_parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
