"""A base image whose layers lie in a folder of this machine: what of it has to lead there, and what may run here.

Its programs run without a chroot, on this machine's kernel, C library and driver. Python finds its own library beside
the interpreter. What the loader would find by the image's `ld.so.conf`, LD_LIBRARY_PATH shows it: a folder of links to
all that this machine lacks. That comes before the RUNPATH of a package's libraries, so what packages bring themselves,
as torch does cuDNN, is not in it. What compiles for that Python here, as Triton does, finds its headers by CPATH: on
Debian and Ubuntu those in its own folder include others by names that begin below `/usr/include`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rlbox.errors import NodeError
from rlbox.provision.environment import is_of_shell

ROOT, LIBRARIES, HEADERS, NOTE = "image", "lib", "include", "base.json"
"""In the folder of an unpacked image: its tree, links to libraries and headers, and the note that says what it is."""

_PATH = re.compile(r"(?<![\w.+@~/-])/[\w.+@~-][\w.+@~/-]*")
_SYSTEM_LIBRARIES = re.compile(r"/(?:usr/)?lib(?:64)?(?:/(?:x86_64|aarch64)-linux-gnu)?/?")
_SYSTEM_PROGRAMS = re.compile(r"/(?:usr/)?s?bin/?")
_OF_C = r"ld|ld-linux.*|lib(?:c|m|pthread|dl|rt|util|resolv|nsl|anl|mvec|thread_db|nss_.*|c_.*|BrokenLocale|SegFault)"
_OF_THE_DRIVER = r"libcuda|libcudadebugger|libnvidia-.*|libnvcuvid|libnvoptix|lib(?:E?GLX?|GLESv.*)_nvidia"
_OF_THE_MACHINE = re.compile(rf"(?:{_OF_C}|{_OF_THE_DRIVER})(?:-[\d.]+)?\.so.*")
"""Libraries that are always this machine's: those of its loader, and those of its driver."""
_NOT_FOR_RUNS = ("DEBIAN_FRONTEND", "LANG", "PWD", "SHLVL")
ANOTHER_MACHINE = "rent a machine whose system is as new, or start its container from the image itself"
_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)")


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library of an image, at `path` there; `added`: no part of its distribution, as CUDA's are none."""

    path: str
    added: bool = False


@dataclass(frozen=True, kw_only=True)
class BaseNote:
    """What an unpacked image is: `NAME@sha256:DIGEST`, layers that are laid (hex), whether that is all of it.

    `env` are rows of its configuration (`NAME=text`), `libraries` what its loader would find, by file name.
    """

    image: str
    layers: tuple[str, ...] = ()
    whole: bool = False
    env: tuple[str, ...] = ()
    libraries: Mapping[str, Library] = field(default_factory=dict)
    schema: int = 1


@dataclass(frozen=True, kw_only=True)
class BaseEnvironment:
    """What an unpacked image has as ENV, leading into its tree.

    Attributes
    ----------
    exports
        Variables with their texts.
    fronts
        Lists of folders, as PATH, that come before what a variable has.
    """

    exports: Mapping[str, str] = field(default_factory=dict)
    fronts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def onto(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with this one in it."""
        lists = {
            name: ":".join(filter(None, (*folders, environ.get(name, "")))) for name, folders in self.fronts.items()
        }
        return {**environ, **self.exports, **lists}


def check_machine(target: str, platform: str, processor: str, libc: str) -> None:
    """Refuse to unpack an image whose programs cannot run on this machine's own system.

    Parameters
    ----------
    platform
        uv's name of the target's platform: `x86_64-manylinux_2_35`, `x86_64-unknown-linux-gnu`.
    processor, libc
        Of this machine: `x86_64`, `glibc 2.35` (empty: another C library).

    Raises
    ------
    NodeError
        Another processor, or an older C library; newer ones run what was built for older ones.
    """
    wanted = _GLIBC.search(platform)
    least = tuple(map(int, wanted.groups())) if wanted else (2, 17)
    here = tuple(map(int, re.findall(r"\d+", libc)[:2])) if libc.startswith("glibc") else ()
    if platform.partition("-")[0] == processor and here >= least:
        return
    which = ".".join(map(str, least))
    raise NodeError(
        f"the base image of target {target} cannot be unpacked here: it is for {platform.partition('-')[0]} with glibc "
        f"{which} or newer, and this machine is {processor} with {libc or 'another C library'}",
        next_step=ANOTHER_MACHINE,
    )


def moved_paths(text: str, root: str, there: Callable[[str], bool]) -> str:
    """Return a text with each path that is in the image as it is below `root`; any other stays, moved ones too."""
    return _PATH.sub(lambda match: root + match[0] if there(match[0]) else match[0], text)


def base_environment(note: BaseNote, folder: str, there: Callable[[str], bool]) -> BaseEnvironment:
    """Return what an image's ENV is for programs of an image unpacked in `folder`.

    Folders that the image has are those in its tree, all others are left out; its distribution's own programs and
    libraries stay aside, for this machine has its own.
    """
    root, exports, fronts = f"{folder}/{ROOT}", dict[str, str](), dict[str, tuple[str, ...]]()
    for name, _, text in (row.partition("=") for row in note.env):
        if is_of_shell(name) or name in _NOT_FOR_RUNS:
            continue
        if name.endswith("PATH") or ":/" in text.replace("://", ""):
            found = tuple(f"{root}{path}" for path in text.split(":") if path.startswith("/") and there(path))
            kept = tuple(path for path in found if not _aside(name, path.removeprefix(root)))
            fronts |= {name: kept} if kept else {}
        else:
            exports[name] = f"{root}{text}" if text.startswith("/") and there(text) else text
    for name, own in {"LD_LIBRARY_PATH": LIBRARIES, "CPATH": HEADERS}.items():
        fronts[name] = (*fronts.get(name, ()), f"{folder}/{own}")
    return BaseEnvironment(exports=exports, fronts=fronts)


def _aside(name: str, path: str) -> bool:
    system = {"PATH": _SYSTEM_PROGRAMS, "LD_LIBRARY_PATH": _SYSTEM_LIBRARIES}.get(name)
    return bool(system and system.fullmatch(path))


def is_system(folder: str) -> bool:
    """Whether a folder of libraries is a distribution's own."""
    return bool(_SYSTEM_LIBRARIES.fullmatch(folder))


def image_libraries(folders: Mapping[str, Sequence[str]], bundled: Collection[str]) -> dict[str, Library]:
    """Return what an image's loader finds, by name: the first folder that has it.

    Parameters
    ----------
    folders
        Names of files in the folders that the loader looks into, in its order.
    bundled
        Names of libraries that Python packages bring: they are found beside those.
    """
    found: dict[str, Library] = {}
    for folder, names in folders.items():
        for name in names:
            if ".so" in name and name not in bundled and not _OF_THE_MACHINE.fullmatch(name):
                found.setdefault(name, Library(path=f"{folder}/{name}", added=not is_system(folder)))
    return found


def shown_libraries(libraries: Mapping[str, Library], here: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield name and path of the libraries that this machine lacks, and of all that the image added to its system.

    Parameters
    ----------
    here
        Names that this machine's loader finds. Its own programs are shown the folder too: what they use stays theirs.
    """
    for name, library in libraries.items():
        if library.added or name not in here:
            yield name, library.path
