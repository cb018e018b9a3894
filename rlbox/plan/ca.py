"""How programs in a container are told which CA bundle to trust."""

from __future__ import annotations

CA_BUNDLE = "/run/rlbox/ca.crt"
"""Where a container sees the CA bundle of its machine."""

CA_NAMES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)
"""Variables that name it to OpenSSL and httpx, requests, curl, pip, git and Node."""
