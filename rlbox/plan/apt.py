"""How the apt packages of a bootstrapped base are pinned: apt itself resolves them in a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from rlbox.errors import SpecError, WorkFailed
from rlbox.spec.lock import Deb
from rlbox.spec.target import Base
from rlbox.values import Command

_ROW = re.compile(r"^'(?P<url>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})$")
_KEEP = 1001  # apt_preferences(5): above 1000 a version is taken even when that is a downgrade
# What a minimal system is made of: source: mmdebstrap(1), "minbase: Essential:yes packages, priority required, apt".
_MINIMAL = ("?essential", "?priority(required)", "apt")
# Without it `usrmerge` is chosen, which brings Perl and converts a system that is merged from the start.
_MERGED = "usr-is-merged"


@dataclass(frozen=True, kw_only=True)
class AptSuite:
    """One line of an apt source list: a suite of an archive (`debian`, below `url`) that is trusted by `keyring`."""

    archive: str
    url: str
    suite: str
    keyring: str

    def line(self) -> str:
        """Return the source list's line."""
        return f"deb [signed-by={self.keyring}] {self.url} {self.suite} main\n"


def suites_of(base: Base) -> dict[str, str]:
    """Return the suites that a bootstrapped base is made from, each with the archive it stands in."""
    distribution, _, suite = base.bootstrap.partition(":")
    for further in base.suites:
        if further.partition("-")[0] != suite:
            raise SpecError(f"base.suites: {further!r} is no suite of {base.bootstrap}")
    security = {further for further in base.suites if further.endswith("-security")}
    return {name: distribution + ("-security" if name in security else "") for name in (suite, *base.suites)}


def plan_apt_root(suites: Iterable[AptSuite], pins: Mapping[str, str], architecture: str, root: str) -> dict[str, str]:
    """Return the files of apt's own folder `root`, so that nothing of this machine's apt is read or written.

    `pins` maps packages to the version to keep while an archive still has it.
    """
    kept = "".join(
        f"Package: {name}\nPin: version {version}\nPin-Priority: {_KEEP}\n\n" for name, version in sorted(pins.items())
    )
    settings = {
        "Dir::State": f"{root}/state",
        "Dir::State::status": f"{root}/status",
        "Dir::Cache": f"{root}/cache",
        "Dir::Etc": f"{root}/etc",
        "Dir::Etc::sourceparts": "none",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::ForceHash": "SHA256",
        "Acquire::Retries": "3",
        "Acquire::http::Timeout": "30",
    }
    return {
        "status": "",
        "apt.conf": "".join(f'{key} "{value}";\n' for key, value in settings.items()),
        "etc/sources.list": "".join(suite.line() for suite in suites),
        "etc/preferences": kept,
    }


def plan_apt_commands(base: Base, root: str) -> tuple[Command, Command]:
    """Return the commands that read the archives' indexes and that print what would be installed."""
    env = {"APT_CONFIG": f"{root}/apt.conf", "LC_ALL": "C"}
    wanted = (*_MINIMAL, _MERGED, *sorted(base.packages))
    return (
        Command(argv=("apt-get", "update", "-qq", "-o", "APT::Update::Error-Mode=any"), env=env, timeout_s=600),
        Command(argv=("apt-get", "install", "--yes", "--print-uris", "-qq", *wanted), env=env, timeout_s=120),
    )


def parse_uris(text: str, suites: Iterable[AptSuite]) -> tuple[Deb, ...]:
    """Return the packages of `apt-get --print-uris`, sorted by name.

    Raises
    ------
    WorkFailed
        A line that is none, or a package from an archive that was not asked for.
    """
    archives = {suite.url.rstrip("/") + "/": suite.archive for suite in suites}
    debs = []
    for line in filter(None, map(str.strip, text.splitlines())):
        row = _ROW.match(line)
        base = next((url for url in archives if row and row["url"].startswith(url)), None)
        if row is None or base is None:
            raise WorkFailed(f"apt printed what is no package of its archives: {line}")
        name, version, _ = row["file"].split("_", 2)
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
    if not debs:
        raise WorkFailed("apt found no package to install")
    return tuple(sorted(debs, key=lambda deb: deb.name))
