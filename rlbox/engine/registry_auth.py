"""Registry credentials from docker's own stores, and answers to a registry's authentication challenges.

A password is read where `docker login` put it, and is sent to the registry or its token service only.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from urllib.parse import urlencode, urlsplit

from rlbox.engine.reference import format_docker_login_argument, is_loopback_host
from rlbox.errors import RegistryError
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.http import RETRYABLE_STATUSES, HttpClient, HttpResponse
from rlbox.values import Secret


def read_docker_login(registry_host: str) -> Mapping[str, str]:
    """Return what docker's configuration or its credential helpers hold for a registry; empty: nothing.

    Returns Mapping: `username` and `password`, or `identitytoken`, which stands for both; with `serveraddress`, as an
      engine wants it.
    Raises RegistryError: the configuration or a helper cannot be read.
    """
    directory = Path(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))
    path = directory / "config.json"
    try:
        settings = parse_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RegistryError(
            _("docker's configuration cannot be read: {error}").format(error=error), where=str(path)
        ) from error
    if not any(settings.get(key) for key in ("auths", "credsStore", "credHelpers")):
        return {}
    found = {key.lower(): value for key, value in _ask_docker(path, registry_host).items()}
    if token := found.get("identitytoken"):
        return {"identitytoken": token, "serveraddress": registry_host}
    if found.get("username"):
        return {"username": found["username"], "password": found["password"], "serveraddress": registry_host}
    return {}


def _ask_docker(path: Path, host: str) -> Mapping[str, str]:
    import docker.auth
    from docker.errors import DockerException

    try:
        return docker.auth.load_config(str(path)).resolve_authconfig(host) or {}
    except (DockerException, ValueError, OSError) as error:
        raise RegistryError(
            _("docker's credentials for {host} cannot be read: {error}").format(host=host, error=error),
            where=str(path),
            next_step=f"docker login {format_docker_login_argument(host)}".rstrip(),
        ) from error


_FIELD = re.compile(r'\b(\w+)="([^"]*)"')
_CLIENT_ID = "rlbox"


class TransientRegistryError(RegistryError):
    """A refusal or failure that may pass by itself: the same request is worth repeating."""

    retry_after = ""


@dataclass(frozen=True, kw_only=True)
class RegistryLogin:
    """What docker remembers of a `docker login`: name and password, or an identity token that stands for both."""

    user: str = ""
    password: Secret
    is_identity_token: bool = False

    def basic_auth_header(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password.reveal()}".encode()).decode()


def find_docker_config_login(registry_host: str) -> RegistryLogin | None:
    """Return what docker remembers for a registry, or None; `RegistryError` when it cannot be read."""
    found = read_docker_login(registry_host)
    if token := found.get("identitytoken"):
        return RegistryLogin(password=Secret(token), is_identity_token=True)
    return RegistryLogin(user=found["username"], password=Secret(found["password"])) if found else None


class RegistryAuthorizer:
    """Answers a registry's challenges, and remembers the answer for the next request of any thread."""

    def __init__(self, http: HttpClient, host: str, *, plain_http: bool) -> None:
        self._http = http
        self._host = host
        self._plain_http = plain_http
        self._header = Secret("")
        self._lock = Lock()

    def authorization_headers(self) -> dict[str, str]:
        return {"Authorization": self._header.reveal()} if self._header.reveal() else {}

    def answer_challenge(self, challenge: str, scope: str, refused_header: str) -> bool:
        """Take up the challenge of a 401; return whether there is something new to send.

        `challenge`: The `WWW-Authenticate` header.
        `scope`: What is wanted, as `repository:NAME:pull,push`; empty when only a login is tested.
        `refused_header`: The `Authorization` header that was refused; empty when there was none.
        Raises RegistryError: the token service refused the login, or would get the password unencrypted.
        """
        kind, __, rest = challenge.partition(" ")
        with self._lock:
            if self._header.reveal() != refused_header:  # another thread met the same challenge and has answered it
                return True
            login = find_docker_config_login(self._host)
            if kind.lower() == "bearer":
                self._header = Secret(f"Bearer {self._token(dict(_FIELD.findall(rest)), login, scope).reveal()}")
            elif kind.lower() == "basic" and login:
                self._header = Secret(login.basic_auth_header())
            return self._header.reveal() != refused_header

    def _token(self, fields: Mapping[str, str], login: RegistryLogin | None, scope: str) -> Secret:
        realm = fields.get("realm", "")
        if login and not may_send_login(realm, self._host if self._plain_http else ""):
            raise RegistryError(
                _("{host} wants the password sent without encryption").format(host=self._host), where=realm
            )
        params = {"service": fields.get("service", ""), "scope": scope or fields.get("scope", "")}
        params = {key: value for key, value in params.items() if value}
        response = self._ask_service(realm, login, params)
        if response.status in (400, 401, 403):
            raise create_login_error(self._host, login_known=login is not None)
        if response.status in RETRYABLE_STATUSES:
            raise TransientRegistryError(
                _("the token service of {host} answered {status}").format(host=self._host, status=response.status),
                where=realm,
            )
        try:
            value = response.parse_json()
            return Secret(str(value.get("token") or value["access_token"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = _("the token service of {host} gave no token (status {status})").format(
                host=self._host, status=response.status
            )
            raise RegistryError(what, where=realm) from error

    def _ask_service(self, realm: str, login: RegistryLogin | None, params: Mapping[str, str]) -> HttpResponse:
        if login and login.is_identity_token:
            form = {"grant_type": "refresh_token", "refresh_token": login.password.reveal(), **params}
            body = urlencode({**form, "client_id": _CLIENT_ID}).encode()
            return self._http.request(
                "POST", realm, headers={"Content-Type": "application/x-www-form-urlencoded"}, body=body
            )
        headers = {"Authorization": login.basic_auth_header()} if login else {}
        return self._http.request("GET", realm + ("&" if "?" in realm else "?") + urlencode(params), headers=headers)


def may_send_login(url: str, plain_http_host: str = "") -> bool:
    """Whether a login may go to an address: TLS, this machine itself, or the host for which the user allows http."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a host in brackets that is no address
        return False
    if parts.scheme == "https":
        return True
    name = parts.hostname or ""
    return parts.scheme == "http" and (
        is_loopback_host(f"[{name}]" if ":" in name else name) or parts.netloc == plain_http_host
    )


def create_login_error(registry_host: str, *, login_known: bool, where: str = "") -> RegistryError:
    what = (
        _("{host} refused the login that docker keeps for it").format(host=registry_host)
        if login_known
        else _("{host} wants a login").format(host=registry_host)
    )
    return RegistryError(
        what, where=where, next_step=f"docker login {format_docker_login_argument(registry_host)}".rstrip()
    )
