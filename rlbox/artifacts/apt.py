"""How the apt packages of a bootstrapped base are pinned: apt itself resolves them in a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from rlbox.errors import WorkFailed
from rlbox.i18n import _
from rlbox.target.lock import Deb
from rlbox.target.target import Base
from rlbox.values import Command

_ROW = re.compile(r"^'(?P<url>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})$")
_KEEP = 1001  # apt_preferences(5): above 1000 a version is taken even when that is a downgrade
# What a minimal system is made of: source: mmdebstrap(1), "minbase: Essential:yes packages, priority required, apt".
_MINIMAL = ("?essential", "?priority(required)", "apt")
# Without it `usrmerge` is chosen, which brings Perl and converts a system that is merged from the start.
_MERGED = "usr-is-merged"


_COMMON = {
    "APT::Install-Recommends": "false",
    "APT::Sandbox::User": "root",
    "Acquire::Languages": "none",
    "Acquire::ForceHash": "SHA256",
    "Acquire::Retries": "3",
    "Acquire::http::Timeout": "30",
}


@dataclass(frozen=True, kw_only=True)
class AptSuite:
    """One line of an apt source list: a suite of an archive (`debian`, below `url`) that is trusted by `keyring`."""

    archive: str
    url: str
    suite: str
    keyring: str

    def line(self) -> str:
        return f"deb [signed-by={self.keyring}] {self.url} {self.suite} main\n"


def plan_apt_root(suites: Iterable[AptSuite], pins: Mapping[str, str], architecture: str, root: str) -> dict[str, str]:
    """Return the files of apt's own folder `root`, so that nothing of this machine's apt is read or written.

    `pins` maps packages to the version to keep while an archive still has it.
    """
    settings = {
        "Dir::State": f"{root}/state",
        "Dir::State::status": f"{root}/status",
        "Dir::Cache": f"{root}/cache",
        "Dir::Etc": f"{root}/etc",
        "Dir::Etc::sourceparts": "none",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        **_COMMON,
    }
    return {
        "status": "",
        "apt.conf": _settings(settings),
        "etc/sources.list": "".join(suite.line() for suite in suites),
        "etc/preferences": plan_pins(pins),
    }


def plan_pins(pins: Mapping[str, str]) -> str:
    return "".join(
        f"Package: {name}\nPin: version {version}\nPin-Priority: {_KEEP}\n\n" for name, version in sorted(pins.items())
    )


def _settings(settings: Mapping[str, str]) -> str:
    return "".join(f'{key} "{value}";\n' for key, value in settings.items())


def plan_apt_commands(base: Base, root: str) -> tuple[Command, Command]:
    env = {"APT_CONFIG": f"{root}/apt.conf", "LC_ALL": "C"}
    minimal = (*_MINIMAL, _MERGED) if base.bootstrap else ()
    wanted = (*minimal, *sorted(base.packages))
    return (
        Command(argv=("apt-get", "update", "-qq", "-o", "APT::Update::Error-Mode=any"), env=env, timeout_s=600),
        Command(argv=("apt-get", "install", "--yes", "--print-uris", "-qq", *wanted), env=env, timeout_s=120),
    )


def plan_image_root(sources: Mapping[str, str], archives: Mapping[str, str], root: str) -> dict[str, str]:
    """Return the source lists of a base image for apt's own folder `root`, file name to text.

    Parameters
    ----------
    sources
        The image's own files below etc/apt/.
    archives
        Archive (`debian`, `ubuntu`) to the address that is to stand for every address which ends so.
    """
    found = {}
    for name, text in sorted(sources.items()):
        for archive, url in archives.items():
            text = re.sub(rf"https?://[^\s\]]+/{re.escape(archive)}/?(?=\s|$)", url, text, flags=re.MULTILINE)
        found[name] = re.sub(r"(signed-by[:=]\s*)/", rf"\g<1>{root}/", text, flags=re.IGNORECASE)
    return found


def plan_image_settings(architecture: str, root: str) -> str:
    """Return apt's settings for adding packages to a base image whose files lie in `root`."""
    settings = {
        "Dir": f"{root}/",
        "Dir::State::status": f"{root}/var/lib/dpkg/status",
        "Dir::Etc::trusted": f"{root}/etc/apt/trusted.gpg",
        "Dir::Etc::trustedparts": f"{root}/etc/apt/trusted.gpg.d",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        **_COMMON,
    }
    return _settings(settings)


def archives_in(sources: Iterable[str], named: Iterable[str]) -> dict[str, str]:
    """Return the addresses in apt source lists, each with the name that a lock gives its archive.

    That is the last part of the address for an archive in `named` (every mirror has it), else the address itself.
    """
    urls = {url.rstrip("/") for text in sources for url in re.findall(r"https?://[^\s\]]+", _uncommented(text))}
    return {url: name if (name := url.rpartition("/")[2]) in set(named) else url for url in sorted(urls)}


def _uncommented(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def parse_uris(text: str, urls: Mapping[str, str]) -> tuple[Deb, ...]:
    """Return the packages of `apt-get --print-uris`, sorted by name; `urls` maps addresses to names of archives.

    Raises
    ------
    WorkFailed
        A line that is none, or a package from an archive that was not asked for.
    """
    archives = {url.rstrip("/") + "/": name for url, name in sorted(urls.items(), key=lambda row: -len(row[0]))}
    debs = []
    for line in filter(None, map(str.strip, text.splitlines())):
        row = _ROW.match(line)
        base = next((url for url in archives if row and row["url"].startswith(url)), None)
        if row is None or base is None:
            raise WorkFailed(_("apt printed what is no package of its archives: {line}").format(line=line))
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
