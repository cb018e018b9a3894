"""A file system whose disk fails, on FUSE: every file operation is an I/O error, or nothing is ever answered."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

_DEVICE = "/dev/fuse"
_NO_SUID_NO_DEVICES = 2 | 4
_HEAD = struct.Struct("<IIQQIIII")  # length, operation, request, node, uid, gid, pid, padding
_FORGET, _GETATTR, _STATFS, _INIT, _ACCESS, _STATX = 2, 3, 17, 26, 34, 52
_GIB = 1 << 18  # in blocks of 4 KiB
_ANSWERS = {
    _INIT: struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 4, 4, 1 << 16, 1, 1, 0, 0),
    _GETATTR: struct.pack("<QII6Q10I", 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40777, 2, 0, 0, 0, 4096, 0),
    _STATFS: struct.pack("<5Q4I24x", 100 * _GIB, 90 * _GIB, 90 * _GIB, 1 << 20, 1 << 20, 4096, 255, 4096, 0),
}
"""What its folder is like: everybody may write, and there is room. Source: include/uapi/linux/fuse.h."""


@contextmanager
def failing_disk(folder: Path, does: Literal["errors", "silence"]) -> Iterator[None]:
    """Mount one on a folder, until the block ends."""
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        pytest.skip("this machine has no FUSE")
    device = os.open(_DEVICE, os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"failing", str(folder).encode(), b"fuse", _NO_SUID_NO_DEVICES, options):
        raise OSError(ctypes.get_errno(), "no FUSE can be mounted")
    answers = threading.Thread(target=_answer, args=(device,), daemon=True)
    if does == "errors":
        answers.start()
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
        if does == "errors":
            answers.join(10)
        os.close(device)  # whoever waits for it is told that it is gone


def _answer(device: int) -> None:
    """Answer what the kernel asks until the file system is taken off."""
    while True:
        try:
            asked = os.read(device, 1 << 18)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            continue  # whoever asked is gone
        _, operation, request, *_ = _HEAD.unpack_from(asked)
        if operation == _FORGET:
            continue
        body = _ANSWERS.get(operation, b"")
        wrong = 0 if body else errno.ENOSYS if operation in (_ACCESS, _STATX) else errno.EIO
        os.write(device, struct.pack("<IiQ", 16 + len(body), -wrong, request) + body)
