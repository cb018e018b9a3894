"""What keeps strangers out of a cluster: a token, or certificates of an authority that is made for it alone."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rlbox.cluster.ray import CERTIFICATE_FILES, TOKEN_FILE
from rlbox.errors import NodeError
from rlbox.i18n import _
from rlbox.system.command import check_command
from rlbox.values import Command, Secret

_STEPS = (
    "req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=rlbox-cluster -keyout ca.key -out ca.crt",
    "req -newkey rsa:2048 -nodes -subj /CN=rlbox-node -keyout node.key -out node.csr",
    "x509 -req -in node.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile names -out node.crt",
)


def make_token() -> dict[str, Secret]:
    """Return a new token, by the name of its file."""
    return {TOKEN_FILE: Secret(secrets.token_hex(32))}


def make_certificates(addresses: Iterable[str]) -> dict[str, Secret]:
    """Return an authority's certificate, and a certificate with key for all nodes; the authority's key is gone then.

    Raises
    ------
    NodeError
        This machine has no openssl.
    """
    if shutil.which("openssl") is None:
        raise NodeError(
            _("there is no openssl on PATH, which makes the cluster's certificates"), next_step=_("install openssl")
        )
    names = ",".join(f"IP:{address}" for address in dict.fromkeys(("127.0.0.1", *addresses)))
    with tempfile.TemporaryDirectory(prefix="rlbox-keys-") as text:
        folder = Path(text)
        (folder / "names").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n", "utf-8")
        for words in _STEPS:
            step = Command(argv=("openssl", *words.split()), cwd=text, timeout_s=60.0)
            check_command(step, "openssl cannot make certificates")
        return {name: Secret((folder / name).read_text("utf-8")) for name in CERTIFICATE_FILES}
