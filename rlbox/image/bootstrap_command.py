"""The command that makes a bootstrapped operating system from its locked packages, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlbox.target.lock import Deb
from rlbox.values import Command

# What no container needs: three quarters of the files, a third of the bytes.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*")
# State that names a moment or a machine: without these the archive differs between two runs.
_REMOVED = (
    "var/log/apt",
    "var/log/dpkg.log",
    "var/log/alternatives.log",
    "var/cache/ldconfig/aux-cache",
    "etc/machine-id",
    "etc/hostname",  # the host's; the engine gives a container its own
    "etc/resolv.conf",
)
_SOURCES_LIST = "# made from locked packages; name an archive here to install more"
RECIPE = repr((_LEFT_OUT, _REMOVED, _SOURCES_LIST))


def deb_file(deb: Deb) -> str:
    """Return the file name of a package in the archive that mmdebstrap reads."""
    return deb.path.rpartition("/")[2]


def plan_package_list(debs: Sequence[Deb], controls: Mapping[str, str]) -> str:
    """Return the index `Packages` of an archive that holds exactly `debs`; `controls` maps sha256 to control text."""
    return "".join(
        f"{controls[deb.sha256].rstrip()}\nFilename: ./{deb_file(deb)}\nSize: {deb.size}\nSHA256: {deb.sha256}\n\n"
        for deb in debs
    )


def plan_release(suite: str, architecture: str, package_list_sha256: str, package_list_bytes: int) -> str:
    """Return the file `Release` of that archive; mmdebstrap tells essential packages by its code name."""
    return (
        f"Codename: {suite}\nSuite: {suite}\nArchitectures: {architecture}\n"
        f"SHA256:\n {package_list_sha256} {package_list_bytes} Packages\n"
    )


def plan_bootstrap(base: str, debs: Sequence[Deb], epoch: int, archive: str, hooks: str, out: str) -> Command:
    """Return the mmdebstrap command.

    Parameters
    ----------
    archive
        Folder with the packages and their index; the only place that packages are taken from.
    hooks
        mmdebstrap's own hooks for a system whose /bin, /lib and /sbin are links from the start.
    """
    _, _, suite = base.partition(":")
    excludes = tuple(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT)
    removals = tuple(f'--customize-hook=rm -rf "$1/{path}"' for path in _REMOVED)
    source = f"--customize-hook=echo '{_SOURCES_LIST}' >\"$1/etc/apt/sources.list\""
    argv = (
        "mmdebstrap",
        "--variant=minbase",
        "--quiet",
        f"--hook-dir={hooks}",
        f"--include={','.join(deb.name for deb in debs)}",
        *excludes,
        *removals,
        source,
        suite,
        out,
        f"deb [trusted=yes] copy:{archive} ./",
    )
    return Command(argv=argv, env={"SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C"}, timeout_s=1800)
