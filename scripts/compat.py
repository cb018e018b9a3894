#!/usr/bin/env python3
"""Write what the metadata of packages says of stacks: `rlbox/planner/requirements.json.xz`, out of the package index.

Of each package in `READ`, every final release of the last 18 months and those of `OLDER`: which Pythons and which glibc
its files are for, and what it requires of the packages here. Of those in `LISTED` only the versions, and so of an older
release that one of these wants.
The same index gives the same file; metadata that was read is kept in ~/.cache/rlbox/compat.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urljoin

from packaging.metadata import RawMetadata, parse_email
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from rlbox.artifacts.locator import ask_uv_for_index_url_or_empty  # noqa: E402
from rlbox.system.network_settings import read_pip_and_proxy_settings  # noqa: E402

OUT = HERE.parent / "rlbox/planner/requirements.json.xz"
KEPT = Path.home() / ".cache/rlbox/compat"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MONTHS, MONTHS_OF_TOOLS = 18, 42
TOOLS = frozenset(("accelerate", "datasets", "numba", "numpy", "opencv-python-headless"))
"""Packages that change slowly, of which old releases are pinned."""
SDIST_BYTES = 20_000_000
TAIL_BYTES = 1 << 17

OLDER = {
    "torch": ["2.4.1", "2.5.1", "2.6.0", "2.7.0"],
    "vllm": ["0.8.5.post1"],
    "flash-attn": ["2.7.4.post1", "2.8.3"],
    "openrlhf": ["0.8.2"],
    "deepspeed": ["0.16.9"],
    "ray": ["2.43.0"],
    "transformers": ["4.51.3", "4.52.3"],
    "tensordict": ["0.8.3"],
    "datasets": ["2.14.4", "3.6.0"],
    "numpy": ["1.26.4"],
    "transformer-engine": ["2.3.0"],
}
"""Releases from before the last 18 months that are still pinned somewhere."""

READ = (
    "torch", "torchvision", "torchaudio", "triton", "vllm", "sglang", "sglang-kernel", "sgl-kernel", "sglang-router",
    "flashinfer-python", "flashinfer-cubin", "flash-attn", "flash-attn-4", "verl", "openrlhf", "deepspeed", "ray",
    "transformers", "tokenizers", "huggingface-hub", "accelerate", "datasets", "tensordict", "megatron-core",
    "transformer-engine", "transformer-engine-cu12", "transformer-engine-cu13", "transformer-engine-torch", "xgrammar",
    "compressed-tensors", "numba", "numpy", "opencv-python-headless",
)  # fmt: skip
LISTED = (
    "cuda-toolkit", "nvidia-cublas", "nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-nvcc", "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
    "nvidia-nvvm", "openai", "pyarrow", "xformers",
)  # fmt: skip
ENGINES = ("sglang", "vllm")
"""A framework says in an extra of that name which versions of the engine it is made for, however that is installed."""
OWN_BUILD = ("cuda-", "nvidia-")
"""What torch's wheels on the package index require and those of a channel do not."""
DEVELOPERS = re.compile(r"^(ci|dev|doc|lint|quality|test)|(^|-)(dev|docs?|tests?|testing)$")
"""Extras that nobody trains with."""
NAMES = frozenset((*READ, *LISTED))
Fact = dict[str, Any]
"""A fact as `compat.toml` writes it."""


class Need(NamedTuple):
    """What a release requires of another package, where `extra` is asked for (empty: always).

    `pythons` are empty where all of the release's are meant.
    """

    extra: str
    pythons: tuple[str, ...]
    text: str


class Release(NamedTuple):
    """The Pythons that a release is for, the glibc that it wants where that is a new one, and what it requires."""

    pythons: tuple[str, ...]
    glibc: str
    needs: tuple[Need, ...]


class RangeFile(io.RawIOBase):
    """A file of the index that is read in parts."""

    def __init__(self, url: str, size: int) -> None:
        super().__init__()
        self._url, self._size, self._at = url, size, 0
        self._from = max(0, size - TAIL_BYTES)
        self._tail = fetch(url, part=(self._from, size - 1))

    def readable(self) -> bool:
        """As a file on a disk."""
        return True

    def seekable(self) -> bool:
        """As a file on a disk."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """As a file on a disk."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """As a file on a disk."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """As a file on a disk."""
        end = self._size if count < 0 else min(self._at + count, self._size)
        if end <= self._at:
            return b""
        inside = self._at >= self._from
        start, self._at = self._at, end
        return self._tail[start - self._from : end - self._from] if inside else fetch(self._url, part=(start, end - 1))


def fetch(url: str, *, accept: str = "*/*", part: tuple[int, int] | None = None) -> bytes:
    """Return what is at an address, or a part of it."""
    headers = {"Accept": accept} | ({"Range": f"bytes={part[0]}-{part[1]}"} if part else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=120) as answer:  # noqa: S310
        if part and answer.status != 206:
            raise OSError("this index serves no parts of files")
        return bytes(answer.read())


def index_page(index: str, name: str) -> list[dict[str, Any]]:
    """Return the files of a package (PEP 691)."""
    url = f"{index}/{name}/"
    page = json.loads(fetch(url, accept="application/vnd.pypi.simple.v1+json"))
    files = [{**file, "url": urljoin(url, file["url"])} for file in page["files"]]
    return [file for file in files if _version(file) is not None]


def _version(file: dict[str, Any]) -> Version | None:
    name = file["filename"]
    try:
        return parse_wheel_filename(name)[1] if name.endswith(".whl") else parse_sdist_filename(name)[1]
    except (ValueError, InvalidVersion):
        return None


def by_version(files: list[dict[str, Any]]) -> dict[Version, list[dict[str, Any]]]:
    """Return the files of every release, the newest first."""
    found: dict[Version, list[dict[str, Any]]] = {}
    for file in files:
        found.setdefault(_version(file) or Version("0"), []).append(file)
    return dict(sorted(found.items(), reverse=True))


def offered(page: dict[Version, list[dict[str, Any]]]) -> set[Version]:
    """Return the final releases that were not withdrawn; of a package without any, all releases."""
    final = {one for one, files in page.items() if not one.is_prerelease and not all(f.get("yanked") for f in files)}
    return final or set(page)


def needed(releases: Iterable[Release]) -> list[Requirement]:
    """Return what the releases require of other packages, each once."""
    return list(map(Requirement, sorted({need.text for release in releases for need in release.needs})))


def day_of(files: list[dict[str, Any]]) -> str:
    """Return the day on which a release came."""
    return min(str(file.get("upload-time") or "0000")[:10] for file in files)


def pythons_of(files: list[dict[str, Any]]) -> tuple[list[str], str]:
    """Return the Pythons that a release has a file for on x86_64, and the glibc that its wheels want."""
    found: dict[str, str] = {}
    for file in files:
        fits = [one for one in PYTHONS if SpecifierSet(file.get("requires-python") or "").contains(one)]
        name = file["filename"]
        if not name.endswith(".whl"):
            found |= dict.fromkeys(fits, "0")
            continue
        for tag in parse_wheel_filename(name)[3]:
            glibc = "0" if tag.platform == "any" else _glibc(tag.platform)
            for one in fits if glibc else ():
                if _fits_python(tag.interpreter, tag.abi, one):
                    found[one] = min(found.get(one, glibc), glibc, key=Version)
    return sorted(found, key=Version), max(found.values(), key=Version, default="0")


def _glibc(platform: str) -> str:
    """Return the glibc of a platform tag, empty for another machine."""
    if match := re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", platform):
        return f"{match[1]}.{match[2]}"
    return "2.17" if platform in ("linux_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64") else ""


def _fits_python(interpreter: str, abi: str, python: str) -> bool:
    word = f"cp{python.replace('.', '')}"
    if abi == "abi3" and (match := re.fullmatch(r"cp3(\d+)", interpreter)):
        return int(match[1]) <= int(python.partition(".")[2])
    return interpreter in ("py3", "py2.py3") or (interpreter == word and abi in (word, "none", "abi3"))


def metadata_of(files: list[dict[str, Any]]) -> RawMetadata:
    """Return the metadata of a release: beside a wheel (PEP 658), else inside of it, else of a small source archive."""
    wheels = [file for file in files if file["filename"].endswith(".whl") and _is_here(file)]
    sources = [file for file in files if file["filename"].endswith(".tar.gz")]
    chosen = min(wheels or sources, key=lambda file: str(file["filename"]), default=None)
    if chosen is None:
        return {}
    kept = KEPT / f"{chosen['hashes']['sha256']}.txt"
    if not kept.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(_metadata(chosen))
    return parse_email(kept.read_bytes())[0]


def _is_here(file: dict[str, Any]) -> bool:
    return any(tag.platform == "any" or _glibc(tag.platform) for tag in parse_wheel_filename(file["filename"])[3])


def _metadata(file: dict[str, Any]) -> bytes:
    url, size = file["url"], int(file.get("size") or 0)
    if not file["filename"].endswith(".whl"):
        if size > SDIST_BYTES:
            return b""
        data = fetch(url)
        if file["hashes"]["sha256"] != hashlib.sha256(data).hexdigest():
            raise OSError(f"{file['filename']}: another sha256")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            named = min((one for one in archive if one.name.endswith("/PKG-INFO")), key=lambda one: one.name.count("/"))
            stream = archive.extractfile(named)
            return stream.read() if stream else b""
    if file.get("core-metadata") or file.get("data-dist-info-metadata"):
        try:
            return fetch(f"{url}.metadata")
        except HTTPError:
            pass
    with zipfile.ZipFile(RangeFile(url, size)) as wheel:
        return wheel.read(next(one for one in wheel.namelist() if one.endswith(".dist-info/METADATA")))


def needs_of(metadata: RawMetadata, pythons: list[str]) -> Iterator[Need]:
    """Yield what a release requires of the packages here."""
    names = [canonicalize_name(name) for name in metadata.get("provides_extra", [])]
    extras = [name for name in names if not DEVELOPERS.search(name)]
    for text in metadata.get("requires_dist", []):
        asked = Requirement(text)
        name = canonicalize_name(asked.name)
        if name not in NAMES or asked.url:
            continue
        words = f"{name}[{','.join(sorted(asked.extras))}]" if asked.extras else name
        plain = [one for one in pythons if _applies(asked, one, "")]
        rows = {"": plain} if plain else {extra: [o for o in pythons if _applies(asked, o, extra)] for extra in extras}
        for extra, fits in rows.items():
            if fits:
                yield Need(extra, () if fits == pythons else tuple(fits), f"{words}{_sorted(asked.specifier)}")


def _sorted(specifier: SpecifierSet) -> str:
    return ",".join(sorted(map(str, specifier)))


def _applies(asked: Requirement, python: str, extra: str) -> bool:
    here = {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": extra,
    }
    return asked.marker is None or asked.marker.evaluate(here)


def release_of(files: list[dict[str, Any]]) -> Release:
    """Return what is kept of a release."""
    pythons, glibc = pythons_of(files)
    needs = tuple(sorted(set(needs_of(metadata_of(files), pythons))))
    return Release(tuple(pythons), glibc if Version(glibc) > Version("2.28") else "", needs)


def facts_of(name: str, releases: dict[str, Release], extras: set[str]) -> Iterator[Fact]:
    """Yield what the releases of a package need; those that follow each other and need the same are one fact."""
    for (extra, pythons, needed_name), rows in needs_by_package(releases).items():
        beside = [f"python{_python_range(pythons)}"] if pythons else []
        if name == "torch" and needed_name.startswith(OWN_BUILD):
            beside.append("default==1")
        what = "-".join((needed_name, *pythons))
        for newest, oldest, asked in runs(releases, rows):
            wanted = f"{needed_name}{_sorted(asked.specifier)}"
            needs = (wanted, *(one for item in sorted(asked.extras) if (one := f"{needed_name}[{item}]") in extras))
            if not extra:
                yield fact_of(name, newest, oldest, beside, needs, what)
                continue
            yield fact_of(name, newest, oldest, [f"{name}[{extra}]", *beside], needs, f"{extra}-{what}")
            if extra in ENGINES and asked.specifier and needed_name in (extra, "torch"):
                there = [*dict.fromkeys((extra, needed_name)), *beside]
                yield fact_of(name, newest, oldest, there, (wanted,), f"with-{extra}-{what}")
    for other, ranges in (
        ("python", {version: _python_range(row.pythons) for version, row in releases.items()}),
        ("glibc", {version: f">={row.glibc}" if row.glibc else "" for version, row in releases.items()}),
    ):
        needing = {version: span for version, span in ranges.items() if span}
        for newest, oldest, span in runs(releases, needing):
            yield fact_of(name, newest, oldest, (), (f"{other}{span}",), other)


def needs_by_package(releases: dict[str, Release]) -> dict[tuple[str, tuple[str, ...], str], dict[str, Requirement]]:
    """Return what each version requires, by extra, Pythons and the name of the required package."""
    found: dict[tuple[str, tuple[str, ...], str], dict[str, Requirement]] = {}
    for version, release in releases.items():
        for need in release.needs:
            asked = Requirement(need.text)
            rows = found.setdefault((need.extra, need.pythons, asked.name), {})
            if version in rows:  # two lines on the same package
                asked.specifier &= rows[version].specifier
                asked.extras |= rows[version].extras
            rows[version] = asked
    return found


def runs(order: Iterable[str], values: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the newest and the oldest version of each run of the same value."""
    for has_value, group in groupby(order, key=lambda version: (version in values, values.get(version))):
        if has_value[0]:
            versions = list(group)
            yield versions[0], versions[-1], has_value[1]


def fact_of(name: str, newest: str, oldest: str, beside: Iterable[str], needs: Iterable[str], what: str) -> Fact:
    """Return a fact in the form of `compat.toml`."""
    span = f"=={newest}" if newest == oldest else f">={oldest},<={newest}"
    when = [f"{name}{span}", *beside]
    return {"id": re.sub(r"[^a-z0-9]+", "-", f"{name}-{oldest}-{what}"), "when": when, "needs": list(needs)}


def _python_range(pythons: tuple[str, ...]) -> str:
    return f">={pythons[0]},<={pythons[-1]}" if 0 < len(pythons) < len(PYTHONS) else ""


def build_facts_of(releases: dict[str, Release]) -> Iterator[Fact]:
    """Yield which CUDA and which NCCL each torch of the package index is built with."""
    for version, release in releases.items():
        asked = [Requirement(need.text) for need in release.needs]
        pins = {one.name: str(one.specifier)[2:] for one in asked if str(one.specifier).startswith("==")}
        cuda = ".".join((pins.get("cuda-toolkit") or pins.get("nvidia-cuda-runtime-cu12", "")).split(".")[:2])
        nccl = pins.get("nvidia-nccl-cu13") or pins.get("nvidia-nccl-cu12")
        if cuda and nccl:
            yield {
                "id": f"torch-{version.replace('.', '-')}",
                "says": f"torch {version} of the package index is built with CUDA {cuda} and NCCL {nccl}",
                "when": [f"torch=={version}", "default==1"],
                "needs": [f"cuda=={cuda}", f"nccl=={nccl}"],
            }


def main() -> int:
    """Write the file."""
    index = (read_pip_and_proxy_settings().index_url or ask_uv_for_index_url_or_empty()).rstrip("/")
    with ThreadPoolExecutor(12) as pool:
        names = sorted(NAMES)
        pages = dict(zip(names, pool.map(lambda name: by_version(index_page(index, name)), names), strict=True))
        newest = max(day_of(pages[name][one]) for name in READ for one in offered(pages[name]))
        since, longer = (_before(newest, months) for months in (MONTHS, MONTHS_OF_TOOLS))
        wanted = {
            (name, version): files
            for name in READ
            for version, files in pages[name].items()
            if version in offered(pages[name])
            if day_of(files) >= (longer if name in TOOLS else since) or str(version) in OLDER.get(name, ())
        }
        sys.stdout.write(f"{len(wanted)} releases since {since}\n")
        rows = dict(zip(wanted, pool.map(release_of, wanted.values()), strict=True))
    read = {name: [one for one in pages[name] if (name, one) in rows] for name in names}
    kept = {name: set(read[name]) or offered(pages[name]) for name in names}
    for asked in needed(rows.values()):
        fitting = [one for one in pages[asked.name] if asked.specifier.contains(one, prereleases=True)]
        if kept[asked.name].isdisjoint(fitting):
            kept[asked.name] |= set(fitting[:1])
    versions = {name: [str(one) for one in pages[name] if one in kept[name]] for name in names}
    releases = {name: {str(one): rows[name, one] for one in read[name]} for name in names if read[name]}
    OUT.write_bytes(lzma.compress(text_of(newest, versions, releases).encode(), preset=9 | lzma.PRESET_EXTREME))
    return 0


def _before(day: str, months: int) -> str:
    return (date.fromisoformat(day) - timedelta(days=months * 365 // 12)).isoformat()


def text_of(newest: str, versions: dict[str, list[str]], releases: dict[str, dict[str, Release]]) -> str:
    """Return the file: a line a fact, so that a diff reads well."""
    extras = {
        f"{name}[{need.extra}]"
        for name, rows in releases.items()
        for release in rows.values()
        for need in release.needs
        if need.extra
    }
    facts = [fact for name, rows in releases.items() for fact in facts_of(name, rows, extras)]
    facts += build_facts_of(releases["torch"])
    table = {
        "schema": 2,
        "date": newest,
        "versions": {name: " ".join(rows) for name, rows in versions.items()} | dict.fromkeys(sorted(extras), "1"),
        "versions_without_facts": {
            name: " ".join(one for one in versions[name] if one not in rows) for name, rows in releases.items()
        },
    }
    lines = ",\n".join(map(json.dumps, facts))
    return f'{json.dumps(table)[:-1]}, "facts": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    sys.exit(main())
