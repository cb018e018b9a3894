"""A login goes over TLS, or stays on this machine, or goes to the one host for which the user allows http."""

from __future__ import annotations

import pytest

from rlbox.engine.registry_auth import may_send_login_over_tls_or_loopback


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("https://auth.example/token", True),
        ("http://127.0.0.1:5000/token", True),
        ("http://[::1]:5000/token", True),
        ("http://localhost/token", True),
        ("http://auth.example/token", False),
        ("http://localhost:1@auth.example/token", False),
        ("http://[::1]@auth.example/token", False),
        ("http://127.0.0.1.example/token", False),
        ("ftp://127.0.0.1/token", False),
        ("/token", False),
        ("", False),
    ],
)
def test_where_a_login_may_go(url: str, may: bool) -> None:
    assert may_send_login_over_tls_or_loopback(url) is may


def test_plain_http_is_allowed_for_one_host() -> None:
    assert may_send_login_over_tls_or_loopback("http://registry.example:5000/token", "registry.example:5000")
    assert not may_send_login_over_tls_or_loopback("http://other.example:5000/token", "registry.example:5000")
