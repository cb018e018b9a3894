"""What a run needs of the network: names, interfaces, ports, mirrors, proxies, the clock."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Literal
from urllib.parse import urlsplit

from rlbox.amounts import duration_text
from rlbox.doctor.catalogue import make_finding
from rlbox.errors import RlboxError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.system.http import HttpClient, NoFullResponseError, create_tls_context, describe_response_error
from rlbox.system.network_settings import find_env_or_pip_ca_bundle_or_empty, read_pip_and_proxy_settings
from rlbox.system.ports import describe_port_holder_unless_free
from rlbox.values import Command

_MAX_CLOCK_SKEW_S = 300.0  # certificates and tokens are refused at about this; Kerberos' own limit is the same
_REQUEST_TIMEOUT_S = 10.0
_MAX_WORKERS = 16
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")
# Variables that name a place from which files come.
_MIRROR_VARIABLES = (
    "HF_ENDPOINT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX",
    "UV_EXTRA_INDEX_URL", "MODELSCOPE_ENDPOINT", "CONDA_CHANNEL_ALIAS",
)  # fmt: skip
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_PROXY_VARIABLES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An address to ask. `name` is the variable or mirror; `is_optional`: others can stand in, or nothing is fetched.

    Once asked, `error` says why it is of no use (empty: it answered), `own_clock_ahead_s` is this machine's clock less
    the server's.
    """

    name: str
    url: str
    kind: Literal["mirror", "proxy", "ray"] = "mirror"
    is_optional: bool = False
    error: str = ""
    own_clock_ahead_s: float | None = None


def check_network(
    environ: Mapping[str, str], ports_that_must_be_free: Mapping[str, int], mirrors: Sequence[Endpoint] = ()
) -> list[Finding]:
    """Return what is wrong with the network: `ports` must be free; mirrors of the environment and pip are asked too."""
    with ThreadPoolExecutor(_MAX_WORKERS) as pool:
        answers = pool.map(_ask, [*mirrors, *read_env_and_pip_endpoints(environ)])
        findings = [
            *_check_interfaces(environ, [name for __, name in socket.if_nameindex()]),
            *_check_ports(ports_that_must_be_free),
        ]
        return [*findings, *make_endpoint_and_clock_findings(list(answers))]


def _check_interfaces(environ: Mapping[str, str], interfaces: Sequence[str]) -> Iterator[Finding]:
    for name in _INTERFACE_VARIABLES:
        value = environ.get(name, "")
        if not value or value.startswith("^"):
            continue
        wanted = [part.strip().partition(":")[0] for part in value.lstrip("=").split(",")]
        is_exact = value.startswith("=") or not name.startswith("NCCL")  # NCCL takes the beginning of a name
        if not any(other == one if is_exact else other.startswith(one) for one in wanted for other in interfaces):
            yield make_finding("interface-missing", name=name, value=value, names=", ".join(interfaces))


def _check_ports(ports: Mapping[str, int]) -> Iterator[Finding]:
    taken: dict[str, dict[str, int]] = {}
    for name, number in ports.items():
        if holder := describe_port_holder_unless_free(number):
            taken.setdefault(holder, {})[name] = number
    for holder, numbers in taken.items():
        texts = ", ".join(f"{number} ({name})" for name, number in numbers.items())
        yield make_finding("port-taken", ports=texts, holder=holder, number=next(iter(numbers.values())))


def make_endpoint_and_clock_findings(probed_endpoints: Sequence[Endpoint]) -> Iterator[Finding]:
    for endpoint in probed_endpoints:
        if endpoint.error:
            is_variable = endpoint.name.isidentifier() and endpoint.name.isupper()
            yield make_finding(
                {"proxy": "proxy-dead", "ray": "ray-address-dead", "mirror": "mirror-dead"}[endpoint.kind],
                level="warning" if endpoint.is_optional else "error",
                seen=endpoint.error,
                where=f"{endpoint.name}={endpoint.url}" if is_variable else f"{endpoint.name}: {endpoint.url}",
                row=endpoint.name,
            )
    skews = [one.own_clock_ahead_s for one in probed_endpoints if one.own_clock_ahead_s is not None]
    skew = min(skews, key=abs, default=0.0)
    if abs(skew) > _MAX_CLOCK_SKEW_S:
        text = _("{took} ahead") if skew > 0 else _("{took} behind")
        yield make_finding("clock-skew", seen=text.format(took=duration_text(abs(skew))))


def read_env_and_pip_endpoints(environ: Mapping[str, str]) -> list[Endpoint]:
    is_offline = any(environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in _OFFLINE_VARIABLES)
    found: dict[str, Endpoint] = {}
    for name in _MIRROR_VARIABLES:
        for url in environ.get(name, "").split():
            is_optional = is_offline and name == "HF_ENDPOINT"
            found.setdefault(url, Endpoint(name=name, url=url.rpartition("=")[2], is_optional=is_optional))
    settings = read_pip_and_proxy_settings(environ)
    for url in (settings.index_url, *settings.extra_index_urls):
        found.setdefault(url, Endpoint(name="pip's configuration", url=url))
    for name in _PROXY_VARIABLES:
        if url := environ.get(name, ""):
            found.setdefault(url, Endpoint(name=name, url=url if "://" in url else f"http://{url}", kind="proxy"))
    address = environ.get("RAY_ADDRESS", "")
    if re.search(r":\d+$", address) and "://" not in address:
        found.setdefault(address, Endpoint(name="RAY_ADDRESS", url=f"tcp://{address}", kind="ray"))
    return [row for row in found.values() if urlsplit(row.url).scheme in ("http", "https", "tcp", "socks5", "socks5h")]


def _ask(endpoint: Endpoint) -> Endpoint:
    return _request(endpoint) if endpoint.kind == "mirror" else _connect(endpoint)


def _connect(endpoint: Endpoint) -> Endpoint:
    parts = urlsplit(endpoint.url)
    host, port = parts.hostname or "", parts.port or {"https": 443, "http": 80}.get(parts.scheme, 1080)
    try:
        with socket.create_connection((host, port), timeout=_REQUEST_TIMEOUT_S):
            return endpoint
    except OSError as error:
        return replace(endpoint, error=f"{host}:{port}: {error.strerror or error}")


def _request(endpoint: Endpoint) -> Endpoint:
    """Return how an address answered: any answer but a server's failure will do."""
    try:
        with (
            HttpClient(
                partial(create_tls_context, find_env_or_pip_ca_bundle_or_empty()), idle_timeout_s=_REQUEST_TIMEOUT_S
            ) as http,
            http.stream("GET", endpoint.url) as answer,
        ):
            error = _("answered {status}").format(status=answer.status) if answer.status >= 500 else ""
            return replace(endpoint, error=error, own_clock_ahead_s=_parse_skew(answer.headers.get("date", "")))
    except (NoFullResponseError, OSError) as problem:
        return replace(endpoint, error=describe_response_error(problem))


def _parse_skew(date: str) -> float | None:
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def run_ray_start_to_list_ports_or_empty(program: str = "/opt/rlbox/bin/ray-start") -> dict[str, int]:
    try:
        done = run_command(Command(argv=(program, "--print", "head"), timeout_s=_REQUEST_TIMEOUT_S))
    except (OSError, RlboxError):
        return {}
    rows = re.findall(r"^--([a-z-]*port)=(\d+)$", done.stdout, re.MULTILINE)
    return {f"ray {name}": int(number) for name, number in rows if name[:4] not in ("min-", "max-")}
