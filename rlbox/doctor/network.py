"""What a run needs of the network: names, interfaces, ports, mirrors, proxies, the clock."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import rlbox
from rlbox.amounts import duration_text
from rlbox.doctor.check_group import CheckGroup
from rlbox.doctor.requirements import Requirements
from rlbox.errors import RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.system.http import HttpClient, NoResponseError, explain_no_response, make_tls_context_factory
from rlbox.system.network_settings import find_ca_bundle, read_network_settings
from rlbox.system.ports import describe_port_holder
from rlbox.values import Command

MAX_CLOCK_SKEW_S = 300.0  # certificates and tokens are refused at about this; Kerberos' own limit is the same
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")
ADDRESS_VARIABLES = ("VLLM_HOST_IP", "HOST_IP", "SGLANG_HOST_IP", "MASTER_ADDR")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An address that was asked. `name` is the variable or mirror, `error` why it is of no use, empty if it answered.

    `kind` is mirror, proxy, endpoint or ray; `is_optional`: others of its kind can stand in, or nothing is fetched now.
    `skew_s` is this machine's clock less the server's.
    """

    name: str
    url: str
    kind: Literal["mirror", "proxy", "endpoint", "ray"] = "mirror"
    error: str = ""
    is_optional: bool = False
    skew_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PortConflict:
    name: str
    number: int
    holder: str


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """What was found; `hostname_ips` is empty where the name has no address, `interfaces` are interfaces."""

    localhost: tuple[str, ...] = ("127.0.0.1",)
    loopback_error: str = ""
    hostname: str = ""
    hostname_ips: tuple[str, ...] = ()
    foreign_ips: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    unresolved_hosts: tuple[str, ...] = ()
    has_nameservers: bool = True
    endpoints: tuple[Endpoint, ...] = ()
    port_conflicts: tuple[PortConflict, ...] = ()
    now_unix: float = 0.0
    earliest_unix: float = 0.0


def _loopback(facts: NetworkFacts, __: Requirements) -> Iterator[Finding]:
    if facts.loopback_error:
        yield Finding(
            id="loopback-down", title=_("this machine cannot speak to itself"), seen=facts.loopback_error,
            where="127.0.0.1",
            remedy=_("ip link set lo up (as root), or start the container with a network"), breaks=("ray-*", "port-*"),
        )  # fmt: skip


def _localhost(facts: NetworkFacts, __: Requirements) -> Iterator[Finding]:
    if not facts.loopback_error and not any(ip == "::1" or ip.startswith("127.") for ip in facts.localhost):
        yield Finding(
            id="localhost-unresolved", title=_("the name localhost is not this machine"),
            seen=_("localhost is {localhost}").format(localhost=', '.join(facts.localhost) or _("unknown")),
            where="/etc/hosts",
            remedy=_("put the line `127.0.0.1 localhost` into /etc/hosts"), breaks=("ray-*",),
        )  # fmt: skip


def _hostname(facts: NetworkFacts, requirements: Requirements) -> Iterator[Finding]:
    seen = _("{hostname} is {hostname_ips}").format(
        hostname=facts.hostname, hostname_ips=", ".join(facts.hostname_ips) or _("unknown")
    )
    only_loopback = all(ip.startswith("127.") or ip == "::1" for ip in facts.hostname_ips)
    if requirements.nodes > 1 and only_loopback and not facts.environ.get("GLOO_SOCKET_IFNAME"):
        yield Finding(
            id="hostname-loopback", title=_("other nodes cannot reach this one by its name"), seen=seen,
            where="/etc/hosts", remedy=_("give the name the node's own address there, or set GLOO_SOCKET_IFNAME"),
            covers=("gloo-interface",),
        )  # fmt: skip
    elif facts.foreign_ips and len(facts.foreign_ips) == len(facts.hostname_ips):
        yield Finding(
            id="hostname-foreign", title=_("this machine's name has the address of another"), level="warning",
            seen=seen,
            where="/etc/hosts", remedy=_("correct /etc/hosts: gloo and torch.distributed listen on what the name says"),
        )  # fmt: skip


def _interfaces(facts: NetworkFacts, __: Requirements) -> Iterator[Finding]:
    for name in INTERFACE_VARIABLES:
        value = facts.environ.get(name, "")
        if not value or value.startswith("^") or not facts.interfaces:
            continue
        wanted = [part.strip().partition(":")[0] for part in value.lstrip("=").split(",")]
        exact = value.startswith("=") or not name.startswith("NCCL")
        there = [w for w in wanted if any(n == w if exact else n.startswith(w) for n in facts.interfaces)]
        if not there:
            yield Finding(
                id="interface-missing", title=_("a network interface that is named does not exist"),
                seen=_("{name}={value}; there are {names}").format
                    (name=name, value=value, names=', '.join(facts.interfaces)), where=name,
                remedy=_("set {name} to one of them (`ip -br address`), or unset it").format(name=name),
                covers=("gloo-interface",),
            )  # fmt: skip


def _addresses(facts: NetworkFacts, __: Requirements) -> Iterator[Finding]:
    for name in facts.unresolved_hosts:
        yield Finding(
            id="address-unknown", title=_("an address that is named cannot be used here"),
            seen=f"{name}={facts.environ.get(name, '')}", where=name,
            remedy=_("set {name} to an address of this machine (MASTER_ADDR: of the head), or unset it").format
                (name=name),
            covers=("vllm-host-ip",),
        )  # fmt: skip


def _ports(facts: NetworkFacts, __: Requirements) -> Iterator[Finding]:
    taken = facts.port_conflicts
    for holder in dict.fromkeys(row.holder for row in taken):
        rows = [row for row in taken if row.holder == holder]
        ports = ", ".join(f"{row.number} ({row.name})" for row in rows)
        yield Finding(
            id="port-taken", title=_("a port that is needed is taken"),
            seen=_("{ports}: held by {holder}").format(ports=ports, holder=holder),
            where=_("port {number}").format(number=rows[0].number),
            remedy=_("a run of rlbox (`rlbox runs`) is ended with `rlbox stop RUN`; else end what holds it, or "
"give the job another port"),
            covers=("ray-port-conflict",),
        )  # fmt: skip


def _nameserver(facts: NetworkFacts, __: Requirements) -> Iterator[Finding]:
    dead = [row for row in facts.endpoints if row.error]
    resolvers = [row for row in dead if "name" in row.error.lower() and "resol" in row.error.lower()]
    if not facts.has_nameservers and resolvers:
        yield Finding(
            id="no-nameserver", title=_("no name server is configured"),
            seen=_("/etc/resolv.conf has no nameserver line"),
            where="/etc/resolv.conf", remedy=_("start the container with --dns, or mend /etc/resolv.conf"),
            breaks=("mirror-dead", "proxy-dead", "endpoint-dead"),
        )  # fmt: skip


def _reached(facts: NetworkFacts, __: Requirements) -> Iterator[Finding]:
    return (_dead(row) for row in facts.endpoints if row.error)


def _dead(row: Endpoint) -> Finding:
    variable = row.name.isidentifier() and row.name.isupper()
    where = f"{row.name}={row.url}" if variable else f"{row.name}: {row.url}"
    match row.kind:
        case "proxy":
            return Finding(
                id="proxy-dead", title=_("the proxy does not answer"), seen=row.error, where=where,
                remedy=_("start it, correct {row}, or unset it").format(row=row.name),
                breaks=("mirror-dead", "endpoint-dead"),
            )  # fmt: skip
        case "ray":
            return Finding(
                id="ray-address-dead", title=_("RAY_ADDRESS names a cluster that does not answer"), seen=row.error,
                where=where, remedy=_("start its head, or unset RAY_ADDRESS"),
            )  # fmt: skip
        case "endpoint":
            return Finding(
                id="endpoint-dead", title=_("a service that is named does not answer"), seen=row.error, where=where,
                remedy=_("correct {row}, or unset it").format(row=row.name),
            )  # fmt: skip
        case _:
            return Finding(
                id="mirror-dead", title=_("a mirror does not answer"), level="warning" if row.is_optional else "error",
                seen=row.error, where=where,
                remedy=_("choose another (`rlbox mirrors probe`); a variable: correct or unset it"),
                covers=("hf-unreachable", "pip-index-unreachable"),
            )  # fmt: skip


def _clock(facts: NetworkFacts, __: Requirements) -> Iterator[Finding]:
    skews = [row.skew_s for row in facts.endpoints if row.skew_s is not None]
    skew = sorted(skews, key=abs)[0] if skews else 0.0
    early = facts.earliest_unix - facts.now_unix
    if early > 86400:
        skew = -early
    if abs(skew) > MAX_CLOCK_SKEW_S:
        took = duration_text(abs(skew))
        seen = _("{took} ahead").format(took=took) if skew > 0 else _("{took} behind").format(took=took)
        yield Finding(
            id="clock-skew", title=_("the clock is wrong"), seen=seen,
            where="clock", remedy=_("set it (`timedatectl set-ntp true`, or the host's own clock)"),
            breaks=("mirror-dead",),
        )  # fmt: skip


check_network = CheckGroup(
    checks=(
        _loopback, _localhost, _hostname, _interfaces, _addresses, _ports, _nameserver, _reached, _clock,
    )
)  # fmt: skip
"""What is wrong with the network."""


REQUEST_TIMEOUT_S = 4.0
_AT_ONCE = 16
# Variables that name a place from which files come, and services that a run reports to.
_MIRRORS = (
    "HF_ENDPOINT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX",
    "UV_EXTRA_INDEX_URL", "MODELSCOPE_ENDPOINT", "CONDA_CHANNEL_ALIAS",
)  # fmt: skip
_SERVICES = ("WANDB_BASE_URL", "MLFLOW_TRACKING_URI", "SANDBOX_FUSION_URL", "SANDBOX_FUSION_ENDPOINT")
_PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_OFFLINE = {"HF_ENDPOINT": ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}


def probe_network(
    environ: Mapping[str, str], requirements: Requirements, mirrors: Sequence[Endpoint] = ()
) -> NetworkFacts:
    """Return the state of the network.

    Parameters
    ----------
    mirrors
        Further addresses to ask, those of a sources profile; the environment's and pip's are found here.
    """
    asked = [*mirrors, *_named(environ)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = [pool.submit(_ask, row) for row in asked]
        names = pool.submit(lambda: (_probe_addresses("localhost"), _probe_addresses(socket.gethostname())))
        unresolved = pool.submit(_unresolved, environ)
        loopback, taken = _probe_loopback(), _taken(requirements)
        localhost, hostname_ips = names.result()
        return NetworkFacts(
            localhost=localhost,
            loopback_error=loopback,
            hostname=socket.gethostname(),
            hostname_ips=hostname_ips,
            foreign_ips=tuple(ip for ip in hostname_ips if not _is_here(ip)),
            interfaces=tuple(name for __, name in socket.if_nameindex()),
            environ=environ,
            unresolved_hosts=unresolved.result(),
            has_nameservers=_has_nameserver(),
            endpoints=tuple(answer.result() for answer in answers),
            port_conflicts=taken,
            now_unix=time.time(),
            earliest_unix=os.stat(str(rlbox.__file__)).st_mtime,
        )


def _named(environ: Mapping[str, str]) -> list[Endpoint]:
    """Return the addresses that the environment and pip's configuration name; the same address once."""
    found: dict[str, Endpoint] = {}
    for name in _MIRRORS:
        off = any(environ.get(switch, "").lower() in ("1", "true", "yes", "on") for switch in _OFFLINE.get(name, ()))
        for url in environ.get(name, "").split():
            found.setdefault(url, Endpoint(name=name, url=url.rpartition("=")[2], is_optional=off))
    for url in _pip_urls(environ):
        found.setdefault(url, Endpoint(name="pip's configuration", url=url))
    for name in _SERVICES:
        if url := environ.get(name, ""):
            found.setdefault(url, Endpoint(name=name, url=url, kind="endpoint"))
    for name in _PROXIES:
        if url := environ.get(name, ""):
            found.setdefault(url, Endpoint(name=name, url=url if "://" in url else f"http://{url}", kind="proxy"))
    address = environ.get("RAY_ADDRESS", "")
    if re.search(r":\d+$", address) and "://" not in address:
        found.setdefault(address, Endpoint(name="RAY_ADDRESS", url=f"tcp://{address}", kind="ray"))
    return [row for row in found.values() if urlsplit(row.url).scheme in ("http", "https", "tcp", "socks5", "socks5h")]


def _pip_urls(environ: Mapping[str, str]) -> list[str]:
    site = read_network_settings(environ)
    return [url for url in (site.index_url, *site.extra_index_urls) if url]


def _ask(row: Endpoint) -> Endpoint:
    parts = urlsplit(row.url)
    if row.kind in ("proxy", "ray"):
        ports = {"https": 443, "http": 80}
        return replace(row, error=_connect(parts.hostname or "", parts.port or ports.get(parts.scheme, 1080)))
    return _request(row)


def _request(row: Endpoint) -> Endpoint:
    """Return how an address answered: any answer but a server's failure will do."""
    try:
        with (
            HttpClient(make_tls_context_factory(find_ca_bundle()), idle_timeout_s=REQUEST_TIMEOUT_S) as http,
            http.stream("GET", row.url) as answer,
        ):
            error = _("answered {status}").format(status=answer.status) if answer.status >= 500 else ""
            return replace(row, error=error, skew_s=_skew(answer.headers.get("date", "")))
    except (NoResponseError, OSError) as problem:
        return replace(row, error=explain_no_response(problem))


def _skew(date: str) -> float | None:
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def _connect(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), timeout=REQUEST_TIMEOUT_S):
            return ""
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"


def _probe_addresses(name: str) -> tuple[str, ...]:
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
    given = {name: _probe_addresses(environ[name]) for name in ADDRESS_VARIABLES if environ.get(name)}
    return tuple(
        name for name, ips in given.items() if not ips or (name != "MASTER_ADDR" and not any(map(_is_here, ips)))
    )


def _probe_loopback() -> str:
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            with socket.create_connection(server.getsockname(), timeout=REQUEST_TIMEOUT_S):
                return ""
    except OSError as error:
        return error.strerror or str(error)


def read_ray_ports(program: str = "/opt/rlbox/bin/ray-start") -> dict[str, int]:
    """Return the ports that a Ray head of this image would listen on; none where it cannot tell."""
    try:
        done = run_command(Command(argv=(program, "--print", "head"), timeout_s=REQUEST_TIMEOUT_S))
    except (OSError, RlboxError):
        return {}
    found = re.findall(r"^--([a-z-]*port)=(\d+)$", done.stdout, re.MULTILINE)
    return {f"ray {name}": int(number) for name, number in found if name[:4] not in ("min-", "max-")}


def _taken(requirements: Requirements) -> tuple[PortConflict, ...]:
    return tuple(
        PortConflict(name=name, number=number, holder=holder)
        for name, number in requirements.ports.items()
        if (holder := describe_port_holder(number))
    )


def _has_nameserver() -> bool:
    try:
        lines = Path("/etc/resolv.conf").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.startswith("nameserver") for line in lines)
