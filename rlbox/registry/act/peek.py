"""Ask a registry on this machine for a manifest in one request, without http.client, whose import takes 0.02 s."""

from __future__ import annotations

import socket

from rlbox.engine.act.api import parse_answer
from rlbox.engine.oci import INDEXES, MANIFESTS, Manifest, parse_manifest
from rlbox.engine.reference import Reference, host_name, is_loopback

_TIMEOUT_S = 5.0


def peek_manifest(reference: Reference) -> Manifest | None:
    """Return the manifest that a tag or digest names, or None when it is not to be had so simply.

    None says nothing about the registry: it may be another machine, want a login or TLS, or not have it.
    """
    if not is_loopback(reference.host):
        return None
    name, port = host_name(reference.host), reference.host.rpartition(":")[2]
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    path = f"/v2/{reference.repository}/manifests/{reference.digest or reference.tag}"
    accept = ", ".join((*MANIFESTS, *INDEXES))
    try:
        with socket.socket(family) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect((name, int(port) if port.isdigit() else 80))
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {reference.host}\r\nAccept: {accept}\r\n\r\n".encode())
            answer = parse_answer(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
        return parse_manifest(answer[1]) if answer and answer[0] == 200 else None
    except (OSError, ValueError):
        return None
