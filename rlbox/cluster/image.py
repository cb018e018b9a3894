"""Bring the image to nodes that lack it: pulled from a registry, or sent as an archive without the layers they have."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbox.app import App
from rlbox.cluster.nodes import ClusterContext, Node
from rlbox.cluster.plan import ClusterPlan
from rlbox.engine.archive import (
    ImageArchive,
    can_engine_unpack_zstd,
    read_diff_ids,
    read_verified_archive,
    save_image_archive,
    stream_archive,
    stream_as_docker_archive,
)
from rlbox.engine.connection import require_image
from rlbox.engine.container import TARGET_LABEL
from rlbox.engine.oci import Manifest
from rlbox.engine.reference import parse_reference
from rlbox.engine.registry_auth import read_docker_login
from rlbox.errors import EngineError, MachineError, SpecError
from rlbox.foreign import parse_digits
from rlbox.i18n import _
from rlbox.system.files import cache_path
from rlbox.system.progress import ProgressItem, show_byte_progress, show_progress

if TYPE_CHECKING:
    from rlbox.engine.docker import DockerEngine

_CONFIG_KEYS = ("Env", "Entrypoint", "Cmd", "User", "WorkingDir", "Labels")
ReportProgress = Callable[[ProgressItem], None]


def hash_layers_and_config(image: Mapping[str, Any] | None) -> str:
    """Return the checksum of an image's plain layers and of its configuration, empty for none.

    An engine calls an image by its manifest or by its configuration, depending on its store, and packs layers as it
    likes; this is the same in all of them.
    """
    if image is None:
        return ""
    config = {key: image["Config"].get(key) or None for key in _CONFIG_KEYS}
    content = json.dumps({"layers": image["RootFS"]["Layers"], **config}, sort_keys=True)
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


def _pull(node: Node, name: str, target: str, tag: str) -> None:
    engine, reference = node.connect_docker_engine(), parse_reference(name)
    if not reference.digest:
        reference = replace(reference, tag=reference.tag or "latest")
    try:
        rows = engine.pull_image(reference, read_docker_login(reference.host))
        errors = [str(row["error"]) for row in rows if "error" in row]
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
    found = engine.find_image(str(reference)) or {}
    if (found.get("Config", {}).get("Labels") or {}).get(TARGET_LABEL) != target:
        raise SpecError(
            _("{text} is not an image of target {target}").format(text=name, target=target),
            next_step=_("rlbox push {target} --to REF prints its name").format(target=target),
        )
    engine.tag_image(str(reference), parse_reference(tag))
    engine.try_remove_image_by_tag(str(reference))


# ---- the image of this machine


@contextmanager
def _save_archive(app: App, image: Mapping[str, Any], tag: str) -> Iterator[ImageArchive]:
    base = cache_path("cluster-images")
    directory = base / str(os.getpid())
    directory.mkdir(parents=True, exist_ok=True)
    for left in base.iterdir():  # of processes that were killed
        if parse_digits(left.name) is None or not Path("/proc", left.name).exists():
            shutil.rmtree(left, ignore_errors=True)
    try:
        path, total = directory / "image.tar", int(image.get("Size") or 0)
        with show_byte_progress(app, _("reading the image"), total) as advance:
            save_image_archive(total, tag, tag, path, advance)
        yield read_verified_archive(path)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def find_present_layer_digests(engine: DockerEngine, archive: ImageArchive, manifest: Manifest) -> set[str]:
    """Return the digests of the archive's layers that the engine has: those that an image of it begins with, too."""
    wanted = read_diff_ids(archive, manifest)
    most = 0
    for row in engine.list_images_with_label(TARGET_LABEL):
        found = (engine.find_image(str(row["Id"])) or {"RootFS": {}})["RootFS"].get("Layers") or []
        same = takewhile(lambda pair: pair[0] == pair[1], zip(wanted, found, strict=False))
        most = max(most, len(list(same)))
    return {layer.digest for layer in manifest.layers[:most]}


def send_archive(
    node: Node, archive: ImageArchive, tag: str, say: Callable[[str], None], report: ReportProgress
) -> None:
    engine, manifest = node.connect_docker_engine(), archive.manifests[0]
    as_it_is = can_engine_unpack_zstd(engine.version())
    present = find_present_layer_digests(engine, archive, manifest)
    total = sum(layer.size for layer in manifest.layers if layer.digest not in present)
    for omit in (present, set[str]()) if present else (set[str](),):
        chunks = stream_archive(archive, omit) if as_it_is else stream_as_docker_archive(archive, tag, omit)
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
        say(_("node {node} lacks layers of the image after all: the complete image is sent").format(node=node.name))


def _count(node: Node, chunks: Iterator[bytes], total: int, report: ReportProgress) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        done += len(chunk)
        report(ProgressItem(key=node.name, title=node.name, done_bytes=done, total_bytes=total))
        yield chunk


# ---- both


def send_or_pull_image_to_nodes(
    context: ClusterContext, plan: ClusterPlan, registry_name: str
) -> tuple[str, dict[str, str]]:
    """Return the image once all nodes have the very same, and what each node's engine calls it.

    Without `registry_name` nodes that lack it are sent it. Nodes without an engine have the checksum of their lock.
    """
    inplace = [member.name for member in plan.members if member.is_inplace]
    pool = context.pool.select_skipping_unconnected(member.name for member in plan.members if not member.is_inplace)
    tag, target, identity = context.image.tag, context.options.target, context.image.lock_checksum
    local = require_image(tag, target) if pool.nodes and not registry_name else None
    if pool.nodes and registry_name:
        text = _("pulling {image} on {nodes}")
        context.app.print_status(text.format(image=registry_name, nodes=", ".join(pool.nodes)))
        pool.map(lambda node: _pull(node, registry_name, target, tag))
    images = pool.map(lambda node: node.connect_docker_engine().find_image(tag))
    if images:
        identity = hash_layers_and_config(local or next(iter(images.values())))
    if plan.image_digest and plan.image_digest != identity:
        raise SpecError(
            _("cluster {plan} was started with another image of {target} than this machine has now").format(
                plan=plan.name, target=plan.target
            ),
            next_step=_("rlbox cluster down {words}, then the same command again").format(
                words=context.options.target_and_options_text
            ),
        )
    lacking = [name for name, found in images.items() if hash_layers_and_config(found) != identity]
    if local and lacking:
        others = pool.select_skipping_unconnected(lacking)
        with _save_archive(context.app, local, tag) as archive, show_progress(context.app) as report:
            others.map(lambda node: send_archive(node, archive, tag, context.app.print_status, report))
        images |= others.map(lambda node: node.connect_docker_engine().find_image(tag))
    for name, found in images.items():
        if hash_layers_and_config(found) != identity:
            raise MachineError(
                _("node {link} has another image than was sent").format(link=name),
                where=name,
                next_step=_("the same command again"),
            )
    names = {name: str(found["Id"]) for name, found in images.items() if found}
    return identity, {**names, **dict.fromkeys(inplace, context.image.lock_checksum)}
