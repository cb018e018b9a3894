"""Ask what a run needs of the network; every question has its own limit, and all are asked at once."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import rlbox
from rlbox.doctor.facts import Demands
from rlbox.doctor.judge.network import ADDRESSES, NetworkFacts, Reached, TakenPort
from rlbox.errors import RlboxError
from rlbox.system.command import run_command
from rlbox.system.http import Http, NoAnswer, explain, site_trust
from rlbox.system.network_settings import probe_site, site_ca
from rlbox.system.ports import probe_port
from rlbox.values import Command

ASK_S = 4.0
_AT_ONCE = 16
# Variables that name a place from which files come, and services that a run reports to.
_MIRRORS = (
    "HF_ENDPOINT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX",
    "UV_EXTRA_INDEX_URL", "MODELSCOPE_ENDPOINT", "CONDA_CHANNEL_ALIAS",
)  # fmt: skip
_SERVICES = ("WANDB_BASE_URL", "MLFLOW_TRACKING_URI", "SANDBOX_FUSION_URL", "SANDBOX_FUSION_ENDPOINT")
_PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_OFFLINE = {"HF_ENDPOINT": ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}


def probe_network(environ: Mapping[str, str], demands: Demands, mirrors: Sequence[Reached] = ()) -> NetworkFacts:
    """Return the state of the network.

    Parameters
    ----------
    mirrors
        Further addresses to ask, those of a sources profile; the environment's and pip's are found here.
    """
    asked = [*mirrors, *_named(environ)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = [pool.submit(_ask, row) for row in asked]
        names = pool.submit(lambda: (_addresses("localhost"), _addresses(socket.gethostname())))
        unresolved = pool.submit(_unresolved, environ)
        loopback, taken = _loopback(), _taken(demands)
        localhost, hostname_ips = names.result()
        return NetworkFacts(
            localhost=localhost,
            loopback_error=loopback,
            hostname=socket.gethostname(),
            hostname_ips=hostname_ips,
            foreign_ips=tuple(ip for ip in hostname_ips if not _is_here(ip)),
            names=tuple(name for _, name in socket.if_nameindex()),
            environ=environ,
            unresolved=unresolved.result(),
            nameservers=_has_nameserver(),
            reached=tuple(answer.result() for answer in answers),
            taken=taken,
            now=time.time(),
            not_before=os.stat(str(rlbox.__file__)).st_mtime,
        )


def _named(environ: Mapping[str, str]) -> list[Reached]:
    """Return the addresses that the environment and pip's configuration name; the same address once."""
    found: dict[str, Reached] = {}
    for name in _MIRRORS:
        off = any(environ.get(switch, "").lower() in ("1", "true", "yes", "on") for switch in _OFFLINE.get(name, ()))
        for url in environ.get(name, "").split():
            found.setdefault(url, Reached(name=name, url=url.rpartition("=")[2], optional=off))
    for url in _pip_urls(environ):
        found.setdefault(url, Reached(name="pip's configuration", url=url))
    for name in _SERVICES:
        if url := environ.get(name, ""):
            found.setdefault(url, Reached(name=name, url=url, kind="endpoint"))
    for name in _PROXIES:
        if url := environ.get(name, ""):
            found.setdefault(url, Reached(name=name, url=url if "://" in url else f"http://{url}", kind="proxy"))
    address = environ.get("RAY_ADDRESS", "")
    if re.search(r":\d+$", address) and "://" not in address:
        found.setdefault(address, Reached(name="RAY_ADDRESS", url=f"tcp://{address}", kind="ray"))
    return [row for row in found.values() if urlsplit(row.url).scheme in ("http", "https", "tcp", "socks5", "socks5h")]


def _pip_urls(environ: Mapping[str, str]) -> list[str]:
    site = probe_site(environ)
    return [url for url in (site.index_url, *site.extra_index_urls) if url]


def _ask(row: Reached) -> Reached:
    parts = urlsplit(row.url)
    if row.kind in ("proxy", "ray"):
        ports = {"https": 443, "http": 80}
        return replace(row, error=_connect(parts.hostname or "", parts.port or ports.get(parts.scheme, 1080)))
    return _request(row)


def _request(row: Reached) -> Reached:
    """Return how an address answered: any answer but a server's failure will do."""
    try:
        with Http(site_trust(site_ca()), silent_s=ASK_S) as http, http.ask("GET", row.url) as answer:
            error = f"answered {answer.status}" if answer.status >= 500 else ""
            return replace(row, error=error, skew_s=_skew(answer.headers.get("date", "")))
    except (NoAnswer, OSError) as problem:
        return replace(row, error=explain(problem))


def _skew(date: str) -> float | None:
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def _connect(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), timeout=ASK_S):
            return ""
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"


def _addresses(name: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(row[4][0]) for row in found))


def _is_here(ip: str) -> bool:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as test:
            test.bind((ip, 0))
    except OSError as error:
        return error.errno not in (99, 19)  # EADDRNOTAVAIL, ENODEV; anything else tells nothing of the address
    return True


def _unresolved(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables whose address has no meaning here, or belongs to another machine."""
    given = {name: _addresses(environ[name]) for name in ADDRESSES if environ.get(name)}
    return tuple(
        name for name, ips in given.items() if not ips or (name != "MASTER_ADDR" and not any(map(_is_here, ips)))
    )


def _loopback() -> str:
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            with socket.create_connection(server.getsockname(), timeout=ASK_S):
                return ""
    except OSError as error:
        return error.strerror or str(error)


def ray_ports(program: str = "/opt/rlbox/bin/ray-start") -> dict[str, int]:
    """Return the ports that a Ray head of this image would listen on; none where it cannot tell."""
    try:
        done = run_command(Command(argv=(program, "--print", "head"), timeout_s=ASK_S))
    except (OSError, RlboxError):
        return {}
    found = re.findall(r"^--([a-z-]*port)=(\d+)$", done.stdout, re.MULTILINE)
    return {f"ray {name}": int(number) for name, number in found if name[:4] not in ("min-", "max-")}


def _taken(demands: Demands) -> tuple[TakenPort, ...]:
    return tuple(
        TakenPort(name=name, number=number, holder=holder)
        for name, number in demands.ports.items()
        if (holder := probe_port(number))
    )


def _has_nameserver() -> bool:
    try:
        lines = Path("/etc/resolv.conf").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.startswith("nameserver") for line in lines)
