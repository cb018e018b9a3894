"""Ask apt: which archives this machine uses, and which packages a bootstrapped base is made of."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rlbox.artifacts.apt import (
    AptSuite,
    archives_in,
    parse_uris,
    plan_apt_commands,
    plan_apt_root,
    plan_image_root,
    plan_image_settings,
    plan_pins,
)
from rlbox.artifacts.image_files import extract_files
from rlbox.artifacts.mirrors import SHARED_ARCHIVES, suites_of
from rlbox.artifacts.objects import Store
from rlbox.errors import NodeError, WorkFailed, page
from rlbox.i18n import _
from rlbox.system.command import check_command
from rlbox.target.lock import Deb
from rlbox.target.target import Base

_APT_FILES = ("etc/apt", "usr/share/keyrings", "var/lib/dpkg/status")
_LOOK = "look at base.packages and at `rlbox mirrors probe`"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture_of(platform: str) -> str:
    """Return Debian's name of the processor in uv's platform name (`x86_64-unknown-linux-gnu`: amd64)."""
    processor = platform.partition("-")[0]
    return _ARCHITECTURES.get(processor, processor)


def resolve_debs(
    base: Base, platform: str, archives: Mapping[str, str], pins: Mapping[str, str], ca_bundle: str
) -> tuple[Deb, ...]:
    """Return every package of a bootstrapped base with the hash that the signed indexes of the archives give.

    Parameters
    ----------
    archives
        Archive (`debian`, `debian-security`) to address.
    pins
        Package to the version that is kept while an archive still offers it.

    Raises
    ------
    NodeError
        This machine has no apt, not the archives' keyring, or no archive for a suite.
    WorkFailed
        apt finds no solution, or an archive does not answer; its last lines are quoted.
    """
    suites = [_suite(archive, suite, archives) for suite, archive in suites_of(base).items()]
    with tempfile.TemporaryDirectory(prefix="rlbox-apt-") as folder:
        root = Path(folder)
        for name in ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
            (root / name).mkdir(parents=True)
        for name, text in plan_apt_root(suites, pins, architecture_of(platform), folder).items():
            (root / name).write_text(text)
        where = ", ".join(sorted({suite.url for suite in suites}))
        told = _told(base, folder, ca_bundle, f"its archives ({where})")
    return parse_uris(told, {suite.url: suite.archive for suite in suites})


def resolve_debs_on_image(
    base: Base, platform: str, store: Store, archives: Mapping[str, str], pins: Mapping[str, str], ca_bundle: str
) -> tuple[Deb, ...]:
    """Return the packages that `base.packages` add to a base image which the store holds.

    The image's own source lists, keys and list of installed packages decide; `archives` may give other addresses.
    """
    with tempfile.TemporaryDirectory(prefix="rlbox-apt-") as folder:
        root = Path(folder)
        extract_files(base.image, platform, store, _APT_FILES, root)
        if not (root / "var/lib/dpkg/status").is_file():
            raise WorkFailed(_("the base image has no list of apt packages"), where=base.image)
        for name in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "etc/apt/preferences.d"):
            (root / name).mkdir(parents=True, exist_ok=True)
        lists = sorted({*root.glob("etc/apt/sources.list"), *root.glob("etc/apt/sources.list.d/*")})
        texts = {str(path): path.read_text("utf-8", "replace") for path in lists}
        replaced = plan_image_root(texts, archives, folder)
        for path, text in replaced.items():
            Path(path).write_text(text)
        (root / "apt.conf").write_text(plan_image_settings(architecture_of(platform), folder))
        (root / "etc/apt/preferences.d/rlbox").write_text(plan_pins(pins))
        told = _told(base, folder, ca_bundle, f"the archives of {base.image}")
    return parse_uris(told, archives_in(replaced.values(), SHARED_ARCHIVES))


def _told(base: Base, folder: str, ca_bundle: str, archives: str) -> str:
    """Return what apt, whose files lie in `folder`, would install for a base."""
    trust = {"SSL_CERT_FILE": ca_bundle} if ca_bundle else {}
    update, install = (replace(one, env={**one.env, **trust}) for one in plan_apt_commands(base, folder))
    check_command(update, f"apt cannot read {archives}", next_step=_LOOK)
    what = _("apt finds no set of packages for the base")
    outcome = check_command(install, what, next_step=_LOOK)
    if "W: " in outcome.stderr and not outcome.stdout:
        raise WorkFailed(_("{what}\n  | {stderr}").format(what=what, stderr=outcome.stderr.strip()))
    return outcome.stdout


def _suite(archive: str, suite: str, archives: Mapping[str, str]) -> AptSuite:
    keyring = Path(f"/usr/share/keyrings/{archive.partition('-')[0]}-archive-keyring.gpg")
    if shutil.which("apt-get") is None or not keyring.is_file():
        missing = "apt-get" if shutil.which("apt-get") is None else str(keyring)
        raise NodeError(
            _("{missing} is missing, and the target's base is bootstrapped from apt").format(missing=missing),
            where="base.bootstrap",
            next_step=_("lock on a machine with apt and debian-archive-keyring (the lock is the same everywhere)"),
        )
    if archive not in archives:
        raise NodeError(
            _("no address of the archive {archive!r} is known here").format(archive=archive),
            where="base.suites",
            next_step=_("name one with an apt rule in a sources profile ({page})").format(page=page("sources")),
        )
    return AptSuite(archive=archive, url=archives[archive], suite=suite, keyring=str(keyring))
