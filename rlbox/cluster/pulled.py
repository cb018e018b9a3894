"""Have the nodes' engines pull the image from a registry, each by itself; this machine reads what names it alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlbox.cluster.reach.fleet import Fleet
from rlbox.cluster.reach.link import NodeLink
from rlbox.engine.container import TARGET_LABEL
from rlbox.engine.oci import Descriptor, Manifest, sha256_digest
from rlbox.engine.reference import Reference, parse_reference
from rlbox.engine.registry_auth import read_docker_login
from rlbox.engine.registry_client import Registry, create_digest_error
from rlbox.errors import EngineError, NodeError, RegistryError, SpecError
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.network_settings import find_ca_bundle
from rlbox.system.progress import ProgressItem
from rlbox.values import Secret


@dataclass(frozen=True, kw_only=True)
class RegistryImage:
    """An image of a registry: `pinned` by digest; `identity` and `names` are those of `SentImage`.

    `zstd` says that layers are packed so, which an engine before Docker 23 cannot unpack.
    `login` is what docker on this machine has for the registry: nodes' engines are given it with each pull, and keep it
    not.
    """

    pinned: Reference
    identity: str
    names: frozenset[str]
    zstd: bool = False
    login: dict[str, Secret] = field(default_factory=dict)


def find_in_registry(text: str, target: str, *, plain_http: bool) -> RegistryImage:
    """Return the image that a registry has under a name, with a tag or a digest.

    Raises
    ------
    SpecError
        It is no name of an image, or the image is of another target.
    RegistryError
        The registry does not answer, refuses, or has no such image.
    """
    reference = parse_reference(text)
    name, repository = reference.digest or reference.tag or "latest", reference.repository
    with Registry(reference.host, plain_http=plain_http, ca_bundle=find_ca_bundle) as registry:
        registry.ping()
        first = registry.get_manifest(repository, name)
        known = [first, *(registry.get_manifest(repository, child.digest) for child in first.manifests)]
        config = _config(known, text)
        _require_target(_read(registry, repository, config), text, target)
    return RegistryImage(
        pinned=replace(reference, tag="", digest=first.digest),
        identity=config.digest,
        names=frozenset((config.digest, *(one.digest for one in known))),
        zstd=any(layer.media_type.endswith("zstd") for one in known for layer in one.layers),
        login={key: Secret(value) for key, value in read_docker_login(reference.host).items()},
    )


def _config(known: Sequence[Manifest], text: str) -> Descriptor:
    for one in known:
        if one.config:
            return one.config
    raise RegistryError(_("{text} is no image").format(text=text), next_step=_("check name and tag"))


def _read(registry: Registry, repository: str, part: Descriptor) -> Any:
    def read() -> bytes:
        with registry.open_blob(repository, part.digest) as (__, blocks):
            return b"".join(blocks)

    data = registry.retry(read)
    if sha256_digest(data) != part.digest:
        raise create_digest_error(f"{registry.host}/{repository}", part.digest, sha256_digest(data))
    return parse_json(data)


def _require_target(config: Any, text: str, target: str) -> None:
    labels = config.get("config", {}).get("Labels") or {}
    if (found := labels.get(TARGET_LABEL, "")) != target:
        whose = _("target {found!s}").format(found=found) if found else _("no target")
        raise SpecError(
            _("{text} is an image of {whose}, not of {target}").format(text=text, whose=whose, target=target),
            next_step=_("rlbox push {target} --to REF prints its name").format(target=target),
        )


def pull_image(
    fleet: Fleet, names: Sequence[str], image: RegistryImage, keep: Reference, tell: Callable[[ProgressItem], None]
) -> None:
    """Have the engines of nodes pull an image, all at once, and prove that it is the same there.

    Raises
    ------
    EngineError
        An engine could not pull it.
    NodeError
        It is another there.
    """
    login = {key: secret.reveal() for key, secret in image.login.items()}

    def pull(link: NodeLink) -> None:
        engine, name = link.engine(), str(image.pinned)
        tell(ProgressItem(key=link.name, title=link.name))
        try:
            said = [str(row["error"]) for row in engine.pull(image.pinned, login) if "error" in row]
        except EngineError as error:
            raise _refused(link, name, error.what) from error
        if said:
            raise _refused(link, name, said[-1])
        found = link.ask("image", image=name)["image"] or {}
        if found.get("id") not in image.names:
            raise NodeError(
                _("node {link} has another image than the registry: {id}").format(
                    link=link.name, id=found.get("id", _("none"))
                ),
                where=name,
                next_step=_("the same command again"),
            )
        engine.tag(str(found["id"]), keep)
        engine.remove_tag(name)
        tell(ProgressItem(key=link.name, title=link.name, mark="✓", told="pulled"))

    Fleet({name: fleet.links[name] for name in names}, ()).each(pull)


def _refused(link: NodeLink, name: str, said: str) -> EngineError:
    return EngineError(
        _("the engine of node {link} could not pull {name}: {said}").format(link=link.name, name=name, said=said),
        where=link.name,
        next_step=_("without --from it is sent from here; or let that node reach the registry"),
    )
