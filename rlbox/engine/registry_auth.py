"""Registry credentials from docker's own stores, and answers to a registry's authentication challenges.

A password is read where `docker login` put it, and is sent to the registry or its token service only.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from rlbox.engine.reference import format_docker_login_command, is_loopback_host
from rlbox.errors import RegistryError
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.system.http import RETRYABLE_STATUSES, HttpClient, HttpResponse
from rlbox.values import Secret

_FIELD = re.compile(r'\b(\w+)="([^"]*)"')
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class TransientRegistryError(RegistryError):
    """A refusal or failure that may pass by itself: the same request is worth repeating."""

    retry_after = ""


def read_docker_login(registry_host: str) -> Mapping[str, str]:
    """Return what docker's configuration or its credential helpers hold for a registry; empty: nothing.

    `username` and `password`, or `identitytoken`, which stands for both; with `serveraddress`, as an engine wants it.
    """
    import docker.auth
    from docker.errors import DockerException

    path = Path(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"), "config.json")
    try:
        parse_untrusted_json(path.read_bytes())  # docker-py takes what is broken for empty
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RegistryError(
            _("docker's configuration cannot be read: {error}").format(error=error), where=str(path)
        ) from error
    try:
        entries = docker.auth.load_config(str(path)).resolve_authconfig(registry_host) or {}
    except (DockerException, ValueError, OSError) as error:
        raise RegistryError(
            _("docker's credentials for {host} cannot be read: {error}").format(host=registry_host, error=error),
            where=str(path),
            next_step=format_docker_login_command(registry_host),
        ) from error
    login = {key.lower(): value for key, value in entries.items()}
    if token := login.get("identitytoken"):
        return {"identitytoken": token, "serveraddress": registry_host}
    if login.get("username"):
        return {"username": login["username"], "password": login["password"], "serveraddress": registry_host}
    return {}


class RegistryAuthorizer:
    def __init__(self, http: HttpClient, host: str, *, plain_http: bool) -> None:
        self._http = http
        self._host = host
        self._plain_http_host = host if plain_http else ""
        self._header: Secret | None = None

    def get_remembered_auth_headers(self) -> dict[str, str]:
        return {"Authorization": self._header.reveal()} if self._header else {}

    def update_auth_from_challenge(self, challenge: str, scope: str) -> bool:
        """Take up the `WWW-Authenticate` header of a 401; return whether there is something new to send.

        `scope`: What is wanted, as `repository:NAME:pull,push`; empty when only a login is tested.
        """
        kind, __, rest = challenge.partition(" ")
        before, login = self.get_remembered_auth_headers(), read_docker_login(self._host)
        if kind.lower() == "bearer":
            self._header = Secret(f"Bearer {self._fetch_token(dict(_FIELD.findall(rest)), login, scope)}")
        elif kind.lower() == "basic" and "username" in login:
            self._header = Secret(_format_basic_auth(login))
        return self.get_remembered_auth_headers() != before

    def _fetch_token(self, fields: Mapping[str, str], login: Mapping[str, str], scope: str) -> str:
        realm = fields.get("realm", "")
        if login and not may_send_login_over_tls_or_loopback(realm, self._plain_http_host):
            raise RegistryError(
                _("{host} wants the password sent without encryption").format(host=self._host), where=realm
            )
        params = {"service": fields.get("service", ""), "scope": scope or fields.get("scope", "")}
        response = self._ask_token_service(realm, login, {key: value for key, value in params.items() if value})
        if response.status in (400, 401, 403):
            raise create_login_error(self._host, login_known=bool(login))
        if response.status in RETRYABLE_STATUSES:
            raise TransientRegistryError(
                _("the token service of {host} answered {status}").format(host=self._host, status=response.status),
                where=realm,
            )
        try:
            value = response.read_json()
            return str(value.get("token") or value["access_token"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = _("the token service of {host} gave no token (status {status})").format(
                host=self._host, status=response.status
            )
            raise RegistryError(what, where=realm) from error

    def _ask_token_service(self, realm: str, login: Mapping[str, str], params: Mapping[str, str]) -> HttpResponse:
        if token := login.get("identitytoken"):
            form = {"grant_type": "refresh_token", "refresh_token": token, **params, "client_id": "rlbox"}
            return self._http.request("POST", realm, headers=_FORM, body=urlencode(form).encode())
        headers = {"Authorization": _format_basic_auth(login)} if login else {}
        return self._http.request("GET", realm + ("&" if "?" in realm else "?") + urlencode(params), headers=headers)


def _format_basic_auth(login: Mapping[str, str]) -> str:
    return "Basic " + base64.b64encode(f"{login['username']}:{login['password']}".encode()).decode()


def may_send_login_over_tls_or_loopback(url: str, plain_http_host: str = "") -> bool:
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


def create_login_error(registry_host: str, *, login_known: bool, error_location: str = "") -> RegistryError:
    what = (
        _("{host} refused the login that docker keeps for it").format(host=registry_host)
        if login_known
        else _("{host} wants a login").format(host=registry_host)
    )
    return RegistryError(what, where=error_location, next_step=format_docker_login_command(registry_host))
