"""Tell whether a port is free, and who holds it."""

from __future__ import annotations

import socket

import psutil

HOST = "127.0.0.1"


def probe_port(number: int) -> str:
    """Return who listens on a port of this machine, `python3 (pid 123)`; empty when it is free.

    Connections that linger after their server ended (TIME_WAIT) do not count: a server that starts now gets the port.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as test:
        test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            test.bind((HOST, number))
        except OSError:
            return _holder(number)
    return ""


def _holder(number: int) -> str:
    try:
        for connection in psutil.net_connections(kind="tcp"):
            here = connection.laddr and connection.laddr.port == number
            if here and connection.pid and connection.status == psutil.CONN_LISTEN:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return "a process that is not visible from here"
