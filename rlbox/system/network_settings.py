"""Network settings of this machine: package indexes of pip and uv, CA bundle, proxies, logins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netrc import netrc


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """`wheels_by_find_links_folder`: local folders and their wheels; an empty `ca_bundle`: the system's own."""

    wheels_by_find_links_folder: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    ca_bundle: str = ""
    proxy_env: Mapping[str, str] = field(default_factory=dict)


SYSTEM_FILE = Path("/etc/pip.conf")
_CA_NAMES = ("RLBOX_CA_BUNDLE", "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


def read_pip_and_proxy_settings(environ: Mapping[str, str] = os.environ) -> NetworkSettings:
    """Return the settings that a build on this machine must honour; environment wins over files, as in pip."""
    pip = _pip_settings(environ)
    folders = [Path(os.path.expanduser(word)) for word in pip.get("find-links", "").split()]
    return NetworkSettings(
        wheels_by_find_links_folder={str(folder): _wheels(folder) for folder in folders if folder.is_dir()},
        index_url=environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or pip.get("index-url", ""),
        extra_index_urls=tuple(pip.get("extra-index-url", "").split()),
        ca_bundle=find_env_or_pip_ca_bundle_or_empty(environ),
        proxy_env={name: environ[name] for name in _PROXY_NAMES if environ.get(name)},
    )


def find_env_or_pip_ca_bundle_or_empty(environ: Mapping[str, str] = os.environ) -> str:
    paths = [environ.get(name, "") for name in _CA_NAMES] + [_pip_settings(environ).get("cert", "")]
    return next((path for path in paths if path and Path(path).is_file()), "")


def read_netrc() -> netrc | None:
    from netrc import NetrcParseError, netrc

    try:
        return netrc(os.environ.get("NETRC"))
    except (OSError, NetrcParseError, UnicodeDecodeError):
        return None


def _wheels(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(name for name in os.listdir(folder) if name.endswith(".whl")))


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    home = Path(environ.get("HOME", "/root"))
    config = Path(environ.get("XDG_CONFIG_HOME", home / ".config"))
    settings: dict[str, str] = {}
    for path in (SYSTEM_FILE, home / ".pip/pip.conf", config / "pip/pip.conf"):
        settings |= _pip_file(path)
    if named := environ.get("PIP_CONFIG_FILE"):
        settings |= _pip_file(Path(named))
    for name in ("find-links", "index-url", "extra-index-url", "cert"):
        if value := environ.get("PIP_" + name.upper().replace("-", "_")):
            settings[name] = value
    return settings


def _pip_file(path: Path) -> dict[str, str]:
    from configparser import ConfigParser, Error

    parser = ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (Error, OSError):  # pip itself reports a broken file
        return {}
    return {
        key: value for name in ("global", "install") if parser.has_section(name) for key, value in parser[name].items()
    }
