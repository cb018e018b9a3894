"""What `rlbox show IMAGE` does: an image explains itself."""

from __future__ import annotations

import re
from typing import Any

from rlbox.app import App
from rlbox.engine.connection import engine, find_image
from rlbox.engine.oci import stored_digest
from rlbox.errors import EngineError, SpecError
from rlbox.fixes.catalogue import load_fixed_target
from rlbox.i18n import _
from rlbox.image.facts import image_layers, lock_changes
from rlbox.image.labels import spec_checksum
from rlbox.image.view import ImageFacts, Standing, image_json, image_text
from rlbox.target.lock import Lock, load_lock, parse_lock
from rlbox.values import LOCK_IN_IMAGE

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_TARGET, _SPEC, _LOCK = "rlbox.target", "rlbox.spec", "rlbox.lock"


def show_image(app: App, word: str) -> bool:
    """Explain the image that `word` names (tag, id, digest); return False when it names none and does not look so.

    Raises
    ------
    EngineError
        It looks like an image, and the engine has none of that name, or does not answer.
    SpecError
        It is an image that rlbox did not make.
    """
    looks_so = bool(set(word) & set("/:@"))
    if not _WORD.fullmatch(word):
        return False
    try:
        image = find_image(word)
    except EngineError:
        if looks_so:
            raise
        return False
    if image is None:
        if looks_so:
            next_step = f"docker pull {word}, or rlbox load FILE"
            raise EngineError(_("the engine has no image {word}").format(word=word), next_step=next_step)
        return False
    facts = _facts(app, word, image)
    app.result({"image": image_json(facts)}, image_text(facts))
    return True


def _facts(app: App, word: str, image: dict[str, Any]) -> ImageFacts:
    labels = (image.get("Config") or {}).get("Labels") or {}
    if not labels.get(_TARGET):
        raise SpecError(
            _("{word} is no image of rlbox: it has no label {target}").format(word=word, target=_TARGET),
            next_step=f"docker image inspect {word}",
        )
    lock, note = _lock_in(image["Id"])
    return ImageFacts(
        name=word,
        identity=image["Id"],
        digest=stored_digest(image),
        tags=tuple(image.get("RepoTags") or ()),
        created=image.get("Created", ""),
        size=image.get("Size", 0),
        labels=labels,
        layers=image_layers(engine().history(image["Id"]), lock, patched=bool(labels.get("rlbox.patches"))),
        lock=lock,
        note=note,
        standing=_standing(app, labels, lock),
    )


def _lock_in(image: str) -> tuple[Lock | None, str]:
    """Return the lock that an image holds, or None and why it cannot be read."""
    text = engine().read_file(image, LOCK_IN_IMAGE)
    if text is None:
        return None, f"{LOCK_IN_IMAGE} is missing in it"
    try:
        return parse_lock(text, LOCK_IN_IMAGE, ""), ""
    except SpecError as error:
        return None, error.what


def _standing(app: App, labels: dict[str, str], lock: Lock | None) -> Standing:
    """Return how an image stands to the project's target of its name."""
    name = labels[_TARGET]
    if name not in app.project.targets():
        return Standing(target=name, spec="there is no such target", lock="", changes=())
    try:
        target = load_fixed_target(app.project, name).target
        now = load_lock(app.project.lock_file(name))
    except SpecError as error:
        return Standing(target=name, spec=f"cannot be read: {error.what.splitlines()[0]}", lock="", changes=())
    same = now is not None and labels.get(_LOCK) == now.checksum()
    return Standing(
        target=name,
        spec="same" if labels.get(_SPEC) == spec_checksum(target) else "differs",
        lock="missing" if now is None else "same" if same else "differs",
        changes=lock_changes(lock, now) if lock and now and not same else (),
    )
