"""Sign a pushed image as cosign does: its digest, in a payload of its own, below the tag `sha256-DIGEST.sig`.

Source: cosign's SIGNATURE_SPEC.md, and "simple signing" of containers/image.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rlbox.engine.oci import MANIFEST_TYPE, compute_sha256_digest
from rlbox.engine.reference import ImageReference
from rlbox.engine.registry_client import Registry
from rlbox.errors import SpecError
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

SigningKey: TypeAlias = "EllipticCurvePrivateKey"
SIGNATURE_ANNOTATION = "dev.cosignproject.cosign/signature"
_PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"


def load_signing_key(file: Path) -> SigningKey:
    """Return the ECDSA P-256 key of an unencrypted PEM file.

    Raises SpecError: it holds no such key, or the extra `sign` is not installed. The error quotes nothing of the file.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise SpecError(
            _("a signature needs the package cryptography, which is not installed"),
            where=str(error.name),
            next_step="pip install 'rlbox[sign]'",
        ) from error
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError):  # no PEM; encrypted
        key = None
    if isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1):
        return key
    raise SpecError(
        _("the signing key is not an unencrypted ECDSA P-256 private key in PEM format"),
        where=str(file),
        next_step="openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out FILE",
    )


def push_signature_return_signature_tag(
    registry: Registry, reference: ImageReference, image_digest: str, key: SigningKey
) -> str:
    """Add a signature of `image_digest` to those that the registry has, and return the tag that holds them.

    A second signature with the same key is the same bytes, and changes nothing.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    tag = f"{image_digest.replace(':', '-')}.sig"
    critical = {
        "identity": {"docker-reference": reference.name_without_tag},
        "image": {"docker-manifest-digest": image_digest},
        "type": "cosign container image signature",
    }
    payload = _to_json({"critical": critical, "optional": None})
    signature = base64.b64encode(key.sign(payload, ECDSA(SHA256(), deterministic_signing=True))).decode()
    layer = {**_describe(payload, _PAYLOAD_TYPE), "annotations": {SIGNATURE_ANNOTATION: signature}}
    before = registry.find_manifest(reference.repository, tag)
    layers = parse_untrusted_json(before.body)["layers"] if before else []  # with every field of other signers
    if layer in layers:
        return tag
    layers.append(layer)
    rootfs = {"type": "layers", "diff_ids": [one["digest"] for one in layers]}
    config = _to_json({"architecture": "", "os": "", "config": {}, "rootfs": rootfs})
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": _describe(config, _CONFIG_TYPE)}
    for blob in (payload, config):
        registry.upload_blob(reference.repository, blob)
    registry.upload_manifest(reference.repository, tag, _to_json({**manifest, "layers": layers}), MANIFEST_TYPE)
    return tag


def _describe(data: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "size": len(data), "digest": compute_sha256_digest(data)}


def _to_json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
