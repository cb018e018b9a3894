"""Bring the image to nodes that lack it: pulled from a registry, or sent as an archive without the layers they have."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.cluster.connection import Node
from rlbox.cluster.context import ClusterContext, ClusterProbe
from rlbox.cluster.plan import ClusterPlan
from rlbox.engine.archive import (
    ImageArchive,
    convert_to_docker_archive,
    read_archive,
    read_diff_ids,
    read_verified_archive,
    save_image_archive,
    unpacks_zstd,
)
from rlbox.engine.connection import require_image
from rlbox.engine.container import TARGET_LABEL
from rlbox.engine.docker import DockerEngine
from rlbox.engine.oci import Manifest
from rlbox.engine.reference import ImageReference, parse_reference
from rlbox.engine.registry_auth import read_docker_login
from rlbox.engine.registry_client import Registry
from rlbox.errors import EngineError, NodeError, RegistryError, SpecError
from rlbox.foreign import parse_json, whole_number
from rlbox.i18n import _
from rlbox.system.files import cache_path
from rlbox.system.network_settings import find_custom_ca_bundle
from rlbox.system.progress import ProgressItem, show_progress
from rlbox.values import Secret

_CONFIG_KEYS = ("Env", "Entrypoint", "Cmd", "User", "WorkingDir", "Labels")
ReportProgress = Callable[[ProgressItem], None]


def _hash_image_content(layers: Sequence[str], config: Mapping[str, Any]) -> str:
    """Return the checksum of an image's plain layers and of its configuration.

    An engine calls an image by its manifest or by its configuration, depending on its store, and packs layers as it
    likes; this is the same in all of them.
    """
    content = {"layers": list(layers), **{key: config.get(key) or None for key in _CONFIG_KEYS}}
    return f"sha256:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"


def hash_layers_and_config(image: Mapping[str, Any] | None) -> str:
    """Return the identity of an image as an engine describes it, empty for none."""
    return _hash_image_content(image["RootFS"]["Layers"], image["Config"]) if image else ""


# ---- an image in a registry


@dataclass(frozen=True, kw_only=True)
class RegistryImage:
    """An image of a registry, `pinned` by digest.

    `login` is what docker on this machine has for the registry: nodes' engines are given it with each pull.
    """

    pinned: ImageReference
    layers_config_sha256: str
    login: dict[str, Secret] = field(default_factory=dict)


def find_in_registry(name: str, target: str, *, plain_http: bool) -> RegistryImage:
    """Return the image that a registry has under a name, with a tag or a digest; `SpecError`: of another target."""
    reference = parse_reference(name)
    repository = reference.repository
    with Registry(reference.host, plain_http=plain_http, ca_bundle=find_custom_ca_bundle()) as registry:
        registry.require_registry()
        first = registry.get_manifest(repository, reference.digest or reference.tag or "latest")
        manifests = [first, *(registry.get_manifest(repository, child.digest) for child in first.manifests)]
        manifest = next((one for one in manifests if one.config), None)
        if manifest is None or manifest.config is None:
            raise RegistryError(_("{text} is not an image").format(text=name), next_step=_("check name and tag"))
        config: dict[str, Any] = parse_json(registry.read_unverified_blob(repository, manifest.config.digest))
    labels = config.get("config", {}).get("Labels") or {}
    if (found := labels.get(TARGET_LABEL, "")) != target:
        whose = _("target {found!s}").format(found=found) if found else _("no target")
        raise SpecError(
            _("{text} is an image of {whose}, not of {target}").format(text=name, whose=whose, target=target),
            next_step=_("rlbox push {target} --to REF prints its name").format(target=target),
        )
    return RegistryImage(
        pinned=replace(reference, tag="", digest=first.digest),
        layers_config_sha256=_hash_image_content(config["rootfs"]["diff_ids"], config["config"]),
        login={key: Secret(value) for key, value in read_docker_login(reference.host).items()},
    )


def _pull(node: Node, image: RegistryImage, tag: str, report: ReportProgress) -> None:
    engine, name = node.engine(), str(image.pinned)
    report(ProgressItem(key=node.name, title=node.name))
    login = {key: secret.reveal() for key, secret in image.login.items()}
    try:
        errors = [str(row["error"]) for row in engine.pull_image(image.pinned, login) if "error" in row]
    except EngineError as error:
        errors = [error.what]
    if errors:
        raise EngineError(
            _("the engine of node {link} could not pull {name}: {said}").format(
                link=node.name, name=name, said=errors[-1]
            ),
            where=node.name,
            next_step=_("without --image it is sent from here; or let that node reach the registry"),
        )
    engine.tag_image(name, parse_reference(tag))
    engine.try_untag_image(name)
    report(ProgressItem(key=node.name, title=node.name, mark="✓", status_text="pulled"))


# ---- the image of this machine


@contextmanager
def _save_archive(image: Mapping[str, Any], tag: str, report: ReportProgress) -> Iterator[ImageArchive]:
    """Yield the image of this machine's engine as an archive, which is removed behind the block."""
    base = cache_path("cluster-images")
    directory = base / str(os.getpid())
    directory.mkdir(parents=True, exist_ok=True)
    for left in base.iterdir():  # of processes that were killed
        if whole_number(left.name) is None or not Path("/proc", left.name).exists():
            shutil.rmtree(left, ignore_errors=True)
    try:
        path, done, total = directory / "image.tar", 0, int(image.get("Size") or 0)

        def count(size: int) -> None:
            nonlocal done
            done += size
            report(ProgressItem(key="save", title=_("reading the image"), done_bytes=done, total_bytes=total))

        save_image_archive(total, tag, tag, path, count)
        yield read_verified_archive(path)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def find_present_layers(engine: DockerEngine, archive: ImageArchive, manifest: Manifest) -> set[str]:
    """Return the digests of the archive's layers that the engine has: those that an image of it begins with, too."""
    wanted = read_diff_ids(archive, manifest)
    most = 0
    for row in engine.list_images(TARGET_LABEL):
        found = ((engine.find_image(str(row["Id"])) or {}).get("RootFS") or {}).get("Layers") or []
        same = [one == other for one, other in zip(wanted, found, strict=False)]
        most = max(most, same.index(False) if False in same else len(same))
    return {layer.digest for layer in manifest.layers[:most]}


def send_archive(
    node: Node, archive: ImageArchive, tag: str, say: Callable[[str], None], report: ReportProgress
) -> None:
    """Load the archive into a node's engine: without the layers that it has, or whole where it then lacks some."""
    engine, manifest = node.engine(), archive.manifests[0]
    as_it_is = unpacks_zstd(engine.version())
    present = find_present_layers(engine, archive, manifest)
    total = sum(layer.size for layer in manifest.layers if layer.digest not in present)
    for omit in (present, set[str]()) if present else (set[str](),):
        chunks = read_archive(archive, omit) if as_it_is else convert_to_docker_archive(archive, tag, omit)
        try:
            rows = engine.load_image(_count(node, chunks, total, report))
            error = next((str(row["error"]) for row in rows if row.get("error")), "")
        except EngineError as failure:
            error = failure.what
        if not error:
            report(ProgressItem(key=node.name, title=node.name, mark="✓", status_text="sent", done_bytes=total))
            return
        full = "no space left" in error.lower()
        if full or not omit:
            raise EngineError(
                _("the image did not get to node {link}: {why}").format(link=node.name, why=error),
                where=node.name,
                next_step=_("free space there") if full else _("the same command again"),
            )
        say(f"node {node.name} lacks layers of the image after all: it is sent whole")


def _count(node: Node, chunks: Iterator[bytes], total: int, report: ReportProgress) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        done += len(chunk)
        report(ProgressItem(key=node.name, title=node.name, done_bytes=done, total_bytes=total))
        yield chunk


# ---- both


class ImageOnNodes(NamedTuple):
    """An image, or for nodes without an engine the checksum of their lock, and what each node's engine calls it."""

    image_or_lock_sha256: str
    engine_id_by_node: dict[str, str]


def bring_image_to_nodes(
    context: ClusterContext, probe: ClusterProbe, existing_plan: ClusterPlan | None, image_to_pull: RegistryImage | None
) -> ImageOnNodes:
    """Return the image once all nodes have the very same.

    For a node without an engine the checksum of the lock stands for the image. `existing_plan`: of a running cluster;
    `image_to_pull`: where nodes that lack it pull it themselves, None: it is sent from here.
    """
    if existing_plan:
        inplace = [member.name for member in existing_plan.members if member.is_inplace]
    else:
        inplace = list(filter(probe.is_node_inplace, probe.facts))
    tag, local = context.image.tag, None
    if len(inplace) == len(probe.facts):
        identity = context.image.lock_checksum
    elif image_to_pull:
        identity = image_to_pull.layers_config_sha256
    else:
        local = require_image(tag, context.options.target)
        identity = hash_layers_and_config(local)
    if existing_plan and existing_plan.image_digest != identity:
        raise SpecError(
            _("cluster {plan} was started with another image of {target} than this machine has now").format(
                plan=existing_plan.name, target=existing_plan.target
            ),
            next_step=_("rlbox cluster down {words}, then the same command again").format(
                words=context.options.option_text
            ),
        )
    pool = context.pool.select_skipping_unconnected([name for name in probe.facts if name not in inplace])
    images = pool.map(lambda node: node.engine().find_image(tag))
    lacking = pool.select_skipping_unconnected(
        [name for name, found in images.items() if hash_layers_and_config(found) != identity]
    )
    if lacking.nodes:
        with show_progress(context.app) as report:
            if image_to_pull:
                lacking.map(lambda node: _pull(node, image_to_pull, tag, report))
            elif local:
                with _save_archive(local, tag, report) as archive:
                    lacking.map(lambda node: send_archive(node, archive, tag, context.app.print_status, report))
    images |= lacking.map(lambda node: node.engine().find_image(tag))
    for name, found in images.items():
        if hash_layers_and_config(found) != identity:
            raise NodeError(
                _("node {link} has another image than was sent: {id}").format(
                    link=name, id=found.get("Id") if found else _("none")
                ),
                where=name,
                next_step=_("the same command again"),
            )
    names = {name: str(found["Id"]) for name, found in images.items() if found}
    return ImageOnNodes(identity, {**names, **dict.fromkeys(inplace, context.image.lock_checksum)})
