"""Resolve apt packages: apt itself does it, in a directory of its own."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote

from rlbox.artifacts.base_image import extract_existing_image_files
from rlbox.artifacts.mirrors import SHARED_ARCHIVES, map_suites_to_archive_names
from rlbox.artifacts.object_store import ObjectStore
from rlbox.errors import MachineError, WorkFailed, get_main_docs_url
from rlbox.i18n import _
from rlbox.system.command import run_command_or_raise
from rlbox.target.lock import Deb
from rlbox.target.target import Base
from rlbox.values import Command

_ROW = re.compile(r"^'(?P<url>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})$")
_KEEP = 1001  # apt_preferences(5): above 1000 a version is taken even when that is a downgrade
# What a minimal system is made of: source: mmdebstrap(1), "minbase: Essential:yes packages, priority required, apt".
_MINIMAL = ("?essential", "?priority(required)", "apt")
# Without it `usrmerge` is chosen, which brings Perl and converts a system that is merged from the start.
_MERGED = "usr-is-merged"


def render_apt_conf_and_pin_files(pinned_versions: Mapping[str, str], architecture: str, root: str) -> dict[str, str]:
    """Return the files that have apt read and write nothing outside of `root`, whose own files lie as in a system.

    `pinned_versions` maps packages to the version to keep while an archive still has it.
    """
    settings = {
        "Dir": f"{root}/",
        "Dir::State::status": f"{root}/var/lib/dpkg/status",
        "Dir::Etc::trusted": f"{root}/etc/apt/trusted.gpg",
        "Dir::Etc::trustedparts": f"{root}/etc/apt/trusted.gpg.d",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::ForceHash": "SHA256",
        "Acquire::Retries": "3",
        "Acquire::http::Timeout": "30",
    }
    pins = sorted(pinned_versions.items())
    return {
        "apt.conf": "".join(f'{key} "{value}";\n' for key, value in settings.items()),
        "etc/apt/preferences.d/rlbox": "".join(
            f"Package: {name}\nPin: version {version}\nPin-Priority: {_KEEP}\n\n" for name, version in pins
        ),
    }


def list_bootstrap_and_base_packages(base: Base) -> tuple[str, ...]:
    return (*((*_MINIMAL, _MERGED) if base.bootstrap else ()), *sorted(base.packages))


def rewrite_source_lists(
    source_lists: Mapping[str, str], url_by_apt_archive: Mapping[str, str], signed_by_root: str
) -> dict[str, str]:
    """Return the source lists of a base image for apt's own folder `signed_by_root`, file name to text.

    `source_lists`: The image's own files below etc/apt/.
    `url_by_apt_archive`: Archive (`debian`, `ubuntu`) to the address that is to stand for every address which ends so.
    """
    found = {}
    for name, text in sorted(source_lists.items()):
        for archive, url in url_by_apt_archive.items():
            text = re.sub(rf"https?://[^\s\]]+/{re.escape(archive)}/?(?=\s|$)", url, text, flags=re.MULTILINE)
        found[name] = re.sub(r"(signed-by[:=]\s*)/", rf"\g<1>{signed_by_root}/", text, flags=re.IGNORECASE)
    return found


def map_urls_to_mirrored_name_or_url(
    source_lists: Iterable[str], names_on_every_mirror: Iterable[str]
) -> dict[str, str]:
    """Return the addresses in apt source lists, each with the name that a lock gives its archive.

    That is the last part of the address for one of `names_on_every_mirror` (every mirror has it), else the address.
    """
    lines = [line for text in source_lists for line in text.splitlines() if not line.lstrip().startswith("#")]
    urls = {url.rstrip("/") for line in lines for url in re.findall(r"https?://[^\s\]]+", line)}
    return {
        url: name if (name := url.rpartition("/")[2]) in set(names_on_every_mirror) else url for url in sorted(urls)
    }


def parse_print_uris(apt_output: str, archive_name_by_url: Mapping[str, str]) -> tuple[Deb, ...]:
    """Return the packages of `apt-get --print-uris`, sorted by name; `archive_name_by_url` maps addresses to names.

    Raises WorkFailed: A line that is none, or a package from an archive that was not asked for.
    """
    archives = {
        url.rstrip("/") + "/": name for url, name in sorted(archive_name_by_url.items(), key=lambda row: -len(row[0]))
    }
    debs = []
    for line in filter(None, map(str.strip, apt_output.splitlines())):
        row = _ROW.match(line)
        base = next((url for url in archives if row and row["url"].startswith(url)), None)
        if row is None or base is None:
            raise WorkFailed(
                _("apt printed a line that does not name a package of its archives: {line}").format(line=line)
            )
        name, version, __ = row["file"].split("_", 2)
        debs.append(
            Deb(
                name=name,
                version=unquote(version),
                archive=archives[base],
                path=unquote(row["url"].removeprefix(base)),
                sha256=row["sha256"],
                size=int(row["size"]),
            )
        )
    return tuple(sorted(debs, key=lambda deb: deb.name))


_APT_FILES = ("etc/apt", "usr/share/keyrings", "var/lib/dpkg/status")
_LOOK = _("look at base.packages and at `rlbox mirrors probe`")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def debian_architecture_or_processor(uv_platform: str) -> str:
    """Return Debian's name of the processor in uv's platform name (`x86_64-unknown-linux-gnu`: amd64)."""
    processor = uv_platform.partition("-")[0]
    return _ARCHITECTURES.get(processor, processor)


def resolve_bootstrapped_base_debs(
    base: Base, platform: str, url_by_apt_archive: Mapping[str, str], pinned_versions: Mapping[str, str], ca_bundle: str
) -> tuple[Deb, ...]:
    """Return every package of a bootstrapped base with the hash that the signed indexes of the archives give.

    `url_by_apt_archive`: Archive (`debian`, `debian-security`) to address.
    `pinned_versions`: Package to the version that is kept while an archive still offers it.
    Raises MachineError: this machine has no apt, not the archives' keyring, or no archive for a suite.
    Raises WorkFailed: apt finds no solution, or an archive does not answer; its last lines are quoted.
    """
    lines, names = [], {}
    for suite, archive in map_suites_to_archive_names(base).items():
        keyring, url = _require_keyring(archive), _require_archive_url(archive, url_by_apt_archive)
        lines.append(f"deb [signed-by={keyring}] {url} {suite} main\n")
        names[url] = archive
    with tempfile.TemporaryDirectory(prefix="rlbox-apt-") as directory:
        root = Path(directory)
        for name, text in {"var/lib/dpkg/status": "", "etc/apt/sources.list": "".join(lines)}.items():
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text(text)
        archives = _("its archives ({names})").format(names=", ".join(sorted(names)))
        output = _run_apt(base, root, platform, pinned_versions, ca_bundle, archives)
    return parse_print_uris(output, names)


def resolve_debs_onto_stored_image(
    base: Base,
    platform: str,
    store: ObjectStore,
    url_by_apt_archive: Mapping[str, str],
    pinned_versions: Mapping[str, str],
    ca_bundle: str,
) -> tuple[Deb, ...]:
    """Return the packages that `base.packages` add to a base image which the store holds.

    The image's own source lists, keys and list of installed packages decide; `url_by_apt_archive` may give other
    addresses.
    """
    with tempfile.TemporaryDirectory(prefix="rlbox-apt-") as directory:
        root = Path(directory)
        extract_existing_image_files(base.image, platform, store, _APT_FILES, root)
        if not (root / "var/lib/dpkg/status").is_file():
            raise WorkFailed(_("the base image has no list of apt packages"), where=base.image)
        lists = sorted({*root.glob("etc/apt/sources.list"), *root.glob("etc/apt/sources.list.d/*")})
        texts = {str(path): path.read_text("utf-8", "replace") for path in lists}
        replaced = rewrite_source_lists(texts, url_by_apt_archive, directory)
        for path, text in replaced.items():
            Path(path).write_text(text)
        archives = _("the archives of {image}").format(image=base.image)
        output = _run_apt(base, root, platform, pinned_versions, ca_bundle, archives)
    return parse_print_uris(output, map_urls_to_mirrored_name_or_url(replaced.values(), SHARED_ARCHIVES))


def _run_apt(
    base: Base, root: Path, platform: str, pinned_versions: Mapping[str, str], ca_bundle: str, archives: str
) -> str:
    for name in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "etc/apt/preferences.d"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in render_apt_conf_and_pin_files(
        pinned_versions, debian_architecture_or_processor(platform), str(root)
    ).items():
        (root / name).write_text(text)
    env = {"APT_CONFIG": f"{root}/apt.conf", "LC_ALL": "C", **({"SSL_CERT_FILE": ca_bundle} if ca_bundle else {})}
    update = ("apt-get", "update", "-qq", "-o", "APT::Update::Error-Mode=any")
    install = ("apt-get", "install", "--yes", "--print-uris", "-qq", *list_bootstrap_and_base_packages(base))
    what = _("apt cannot read {archives}").format(archives=archives)
    run_command_or_raise(Command(argv=update, env=env, timeout_s=600), what, next_step=_LOOK)
    what = _("apt finds no set of packages for the base")
    outcome = run_command_or_raise(Command(argv=install, env=env, timeout_s=120), what, next_step=_LOOK)
    if "W: " in outcome.stderr and not outcome.stdout:
        raise WorkFailed(_("{what}\n  | {stderr}").format(what=what, stderr=outcome.stderr.strip()))
    return outcome.stdout


def _require_keyring(archive: str) -> Path:
    keyring = Path(f"/usr/share/keyrings/{archive.partition('-')[0]}-archive-keyring.gpg")
    if shutil.which("apt-get") is None or not keyring.is_file():
        missing = "apt-get" if shutil.which("apt-get") is None else str(keyring)
        raise MachineError(
            _("{missing} is missing, and the target's base is bootstrapped from apt").format(missing=missing),
            where="base.bootstrap",
            next_step=_("lock on a machine with apt and debian-archive-keyring (the lock is the same everywhere)"),
        )
    return keyring


def _require_archive_url(archive: str, url_by_apt_archive: Mapping[str, str]) -> str:
    if archive not in url_by_apt_archive:
        raise MachineError(
            _("no address of the archive {archive!r} is known here").format(archive=archive),
            where="base.suites",
            next_step=_("name one with an apt rule in a sources profile ({page})").format(
                page=get_main_docs_url("sources")
            ),
        )
    return url_by_apt_archive[archive]
