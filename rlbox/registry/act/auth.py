"""Who rlbox is to a registry: docker's own credential stores, and the answers to a registry's challenges.

A password is read where `docker login` put it, and goes nowhere but to the registry or its token service.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from urllib.parse import urlencode, urlsplit

from rlbox.engine.reference import DOCKER_HUB, is_loopback
from rlbox.errors import RegistryError
from rlbox.registry.act.connections import Connections, HttpRequest
from rlbox.values import Secret

PASSING = (429, 500, 502, 503, 504)
_FIELD = re.compile(r'(\w+)="([^"]*)"')
_CLIENT_ID = "rlbox"


class MayPass(RegistryError):
    """A refusal or failure that may pass by itself: the same request is worth repeating."""

    retry_after = ""


@dataclass(frozen=True, kw_only=True)
class Login:
    """What docker remembers of a `docker login`: name and password, or an identity token that stands for both."""

    user: str = ""
    password: Secret
    stands_for_both: bool = False

    def basic(self) -> str:
        """Return the value of an `Authorization: Basic` header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password.reveal()}".encode()).decode()


def find_login(host: str) -> Login | None:
    """Return what docker's configuration or its credential helpers hold for a registry, or None.

    docker-py is only imported when the configuration has credentials at all: the import costs 0.3 s.

    Raises
    ------
    RegistryError
        The configuration or a helper cannot be read.
    """
    folder = Path(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))
    path = folder / "config.json"
    try:
        settings = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RegistryError(f"docker's configuration cannot be read: {error}", where=str(path)) from error
    if not any(settings.get(key) for key in ("auths", "credsStore", "credHelpers")):
        return None
    return _ask_docker(path, host)


def _ask_docker(path: Path, host: str) -> Login | None:
    import docker.auth
    from docker.errors import DockerException

    try:
        found = docker.auth.load_config(str(path)).resolve_authconfig(host)
    except (DockerException, ValueError, OSError) as error:
        raise RegistryError(
            f"docker's credentials for {host} cannot be read: {error}",
            where=str(path),
            next_step=f"docker login {login_name(host)}".rstrip(),
        ) from error
    fields = {key.lower(): value for key, value in (found or {}).items()}
    if token := fields.get("identitytoken"):
        return Login(password=Secret(token), stands_for_both=True)
    if fields.get("username"):
        return Login(user=fields["username"], password=Secret(fields["password"]))
    return None


def login_name(host: str) -> str:
    """Return the word that `docker login` wants for a registry; Docker Hub has none."""
    return "" if host == DOCKER_HUB else host


def engine_header(host: str) -> str:
    """Return `X-Registry-Auth` for the engine, which speaks to the registry itself."""
    login = find_login(host)
    fields: dict[str, str] = {}
    if login and login.stands_for_both:
        fields = {"identitytoken": login.password.reveal(), "serveraddress": host}
    elif login:
        fields = {"username": login.user, "password": login.password.reveal(), "serveraddress": host}
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()


class Authorizer:
    """Answers a registry's challenges, and remembers the answer for the next request of any thread."""

    def __init__(self, connections: Connections, host: str, *, plain_http: bool) -> None:
        self._connections = connections
        self._host = host
        self._plain_http = plain_http
        self._header = Secret("")
        self._lock = Lock()

    def headers(self) -> dict[str, str]:
        """Return what to send along now."""
        return {"Authorization": self._header.reveal()} if self._header.reveal() else {}

    def answer(self, challenge: str, scope: str, sent: str) -> bool:
        """Take up the challenge of a 401; return whether there is something new to send.

        Parameters
        ----------
        challenge
            The `WWW-Authenticate` header.
        scope
            What is wanted, as `repository:NAME:pull,push`; empty when only a login is tested.
        sent
            The `Authorization` header that was refused; empty when there was none.

        Raises
        ------
        RegistryError
            The token service refused the login, or would get the password unencrypted.
        """
        kind, _, rest = challenge.partition(" ")
        with self._lock:
            if self._header.reveal() != sent:  # another thread met the same challenge and has answered it
                return True
            login = find_login(self._host)
            if kind.lower() == "bearer":
                self._header = Secret(f"Bearer {self._token(dict(_FIELD.findall(rest)), login, scope).reveal()}")
            elif kind.lower() == "basic" and login:
                self._header = Secret(login.basic())
            return self._header.reveal() != sent

    def _token(self, fields: Mapping[str, str], login: Login | None, scope: str) -> Secret:
        realm = fields.get("realm", "")
        if login:
            self._check_realm(realm)
        asked = {"service": fields.get("service", ""), "scope": scope or fields.get("scope", "")}
        asked = {key: value for key, value in asked.items() if value}
        with self._connections.ask(_token_request(realm, login, asked)) as response:
            response.read()
        if response.status in (400, 401, 403):
            raise refused_login(self._host, login_known=login is not None)
        if response.status in PASSING:
            raise MayPass(f"the token service of {self._host} answered {response.status}", where=realm)
        try:
            value = json.loads(response.read())
            return Secret(str(value.get("token") or value["access_token"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"the token service of {self._host} gave no token (status {response.status})"
            raise RegistryError(what, where=realm) from error

    def _check_realm(self, realm: str) -> None:
        """Refuse to send a password unencrypted to another machine."""
        parts = urlsplit(realm)
        if parts.scheme != "https" and not is_loopback(parts.netloc) and not self._plain_http:
            raise RegistryError(f"{self._host} wants the password sent without encryption", where=realm)


def _token_request(realm: str, login: Login | None, asked: Mapping[str, str]) -> HttpRequest:
    if login and login.stands_for_both:
        form = {"grant_type": "refresh_token", "refresh_token": login.password.reveal(), **asked}
        body = urlencode({**form, "client_id": _CLIENT_ID}).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return HttpRequest(method="POST", url=realm, headers=headers, content=body)
    headers = {"Authorization": login.basic()} if login else {}
    url = realm + ("&" if urlsplit(realm).query else "?") + urlencode(asked)
    return HttpRequest(method="GET", url=url, headers=headers)


def refused_login(host: str, *, login_known: bool, where: str = "") -> RegistryError:
    """Return the error for a registry that takes no (or not this) login."""
    what = f"{host} refused the login that docker keeps for it" if login_known else f"{host} wants a login"
    return RegistryError(what, where=where, next_step=f"docker login {login_name(host)}".rstrip())
