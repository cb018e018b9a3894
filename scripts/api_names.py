"""Write `rlbox/diagnose/api_names.json.xz`: between which releases of a package a name of its Python API exists.

    .venv/bin/python scripts/api_names.py [PACKAGE...]      all of PACKAGES, or these again

Of each minor release since SINCE the last one is read: its wheel's Python files, nothing is installed or imported. Kept
are names that some of these releases have and others do not: `module.name`, `Class.attribute` and `callable(argument`.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import lzma
import re
import sys
import tempfile
import urllib.request
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from rlbox.artifacts.locator import ask_uv_for_index_url_or_empty

TABLE = Path(__file__).resolve().parents[1] / "rlbox/diagnose/api_names.json.xz"
SINCE = "2024-07"
PACKAGES = {
    "accelerate": "accelerate", "compressed-tensors": "compressed_tensors", "datasets": "datasets",
    "huggingface-hub": "huggingface_hub", "liger-kernel": "liger_kernel", "lm-eval": "lm_eval",
    "megatron-core": "megatron", "mistral-common": "mistral_common", "openai": "openai", "peft": "peft",
    "sglang": "sglang", "tensordict": "tensordict", "transformers": "transformers", "trl": "trl", "verl": "verl",
    "vllm": "vllm", "xgrammar": "xgrammar",
}  # fmt: skip
"""Distributions, and the module of each that is read."""
GAP = 1 << 18
"""Bytes between two files of a wheel up to which both come in one request."""
PASSED_OVER = re.compile(
    r"(?:^|/)(?:tests?|examples|benchmarks?|third_party|vendored?|_vendor|cli)/|/(?:test_|conftest)"
)
DETAILED = re.compile(r"^(?!transformers/models/|vllm/model_executor/models/|sglang/srt/models/|openai/types/)")
"""Files whose attributes and arguments are kept too; models are too many."""
_DEFINED = re.compile(r"(?m)^(?:class|def|async def) (\w+)|^([A-Z]\w*) *[:=]")
_ALL = re.compile(r"(?ms)^__all__ *= *\[(.*?)\]")
_WORD = re.compile(r"['\"](\w+)['\"]")


class RangeFile(io.RawIOBase):
    """A file on a server of which only what is asked for is read."""

    def __init__(self, url: str) -> None:
        self.url, self.at = url, 0
        self.blocks: dict[tuple[int, int], bytes] = {}
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as answer:
            self.size = int(answer.headers["Content-Length"])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def fetch(self, begin: int, end: int) -> bytes:
        request = urllib.request.Request(self.url, headers={"Range": f"bytes={begin}-{end - 1}"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bytes(answer.read())

    def read(self, size: int = -1) -> bytes:
        begin, end = self.at, self.size if size < 0 else min(self.size, self.at + size)
        self.at = end
        for (first, last), block in self.blocks.items():
            if first <= begin and end <= last:
                return block[begin - first : end - first]
        return self.fetch(begin, end) if end > begin else b""


def list_wheels(index: str, package: str) -> dict[str, str]:
    """Return the address of the wheel of the last patch of each minor release, oldest first."""
    request = urllib.request.Request(
        f"{index.rstrip('/')}/{package}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    found: dict[tuple[int, ...], tuple[Version, str]] = {}
    for file in files:
        name = file["filename"]
        if not name.endswith(".whl") or file.get("yanked") or file.get("upload-time", "9") < SINCE:
            continue
        if not name.endswith("-any.whl") and "x86_64" not in name:
            continue
        version = Version(name.split("-")[1])
        if version.is_prerelease or version.is_devrelease:
            continue
        minor = version.release[:3] if version.release[0] == 0 and package in ("sglang",) else version.release[:2]
        if minor not in found or version >= found[minor][0]:
            found[minor] = version, urllib.request.urljoin(answer.url, file["url"])
    return {str(version): url for version, url in sorted(found.values())}


def read_sources(url: str, module: str) -> dict[str, str]:
    """Return the texts of a wheel's Python files by their names."""
    with RangeFile(url) as raw, zipfile.ZipFile(raw) as wheel:  # type: ignore[type-var]
        chosen = [
            item
            for item in sorted(wheel.infolist(), key=lambda item: item.header_offset)
            if item.filename.startswith(f"{module}/") and item.filename.endswith(".py")
            and not PASSED_OVER.search(item.filename)
        ]  # fmt: skip
        spans: list[list[int]] = []
        for item in chosen:
            begin, end = item.header_offset, item.header_offset + item.compress_size + 512
            if spans and begin - spans[-1][1] < GAP:
                spans[-1][1] = end
            else:
                spans.append([begin, end])
        for begin, end in spans:
            end = min(end, raw.size)
            raw.blocks[begin, end] = raw.fetch(begin, end)
        return {item.filename: wheel.read(item).decode("utf-8", "replace") for item in chosen}


class Package:
    """The names that a release has, as its sources tell them."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.trees: dict[str, ast.Module] = {}
        self.is_package: set[str] = set()
        self.lazy: set[str] = set()
        """Modules that import a name when it is asked for, by a table of texts."""
        self.files: dict[str, str] = {}
        self.classes: dict[str, list[tuple[str, ast.ClassDef]]] = defaultdict(list)
        self._names: dict[str, set[str]] = {}
        self._exported: set[str] = set()
        for name, text in sources.items():
            if not DETAILED.match(name) and not name.endswith("__init__.py"):
                own = {one or other for one, other in _DEFINED.findall(text)}
                self._names[name[:-3].replace("/", ".")] = own
                exported = _ALL.search(text)
                self._exported |= set(_WORD.findall(exported[1])) if exported else set()
                continue
            try:
                tree = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError):
                continue
            module = name[:-3].replace("/", ".")
            if module.endswith(".__init__"):
                module = module.removesuffix(".__init__")
                self.is_package.add(module)
            self.trees[module], self.files[module] = tree, name
            if "_import_structure" in text or "MODULE_ATTRS" in text:
                self.lazy.add(module)
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    self.classes[node.name].append((module, node))
        self._attributes: dict[str, set[str] | None] = {}

    def names(self, module: str) -> set[str]:
        """Return what can be imported from a module."""
        if module in self._names or module not in self.trees:
            return self._names.get(module, set())
        found = self._names[module] = set()
        if module.count(".") == 0 and module in self.lazy:
            found |= self._exported
        for node in _statements(self.trees[module].body):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    found |= {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
                if module in self.lazy:
                    found |= {one.value for one in ast.walk(node) if _is_name(one)}
            elif isinstance(node, ast.Expr) and module in self.lazy:
                found |= {one.value for one in ast.walk(node) if _is_name(one)}
            elif isinstance(node, ast.ImportFrom):
                source = self._resolve(module, node)
                for alias in node.names:
                    if alias.name == "*":
                        found |= self._starred(source)
                    else:
                        found.add(alias.asname or alias.name)
        return found

    def _starred(self, module: str) -> set[str]:
        if module not in self.trees:
            return set()
        for node in self.trees[module].body:
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                return {one.value for one in ast.walk(node.value) if _is_name(one)}
        return {name for name in self.names(module) if not name.startswith("_")}

    def _resolve(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        up = node.level - (module in self.is_package)
        base = module.split(".")[: len(module.split(".")) - up]
        return ".".join([*base, *([node.module] if node.module else [])])

    def attributes(self, name: str) -> set[str] | None:
        """Return the attributes of a class and its bases; None where its bases are not all known."""
        if name not in self._attributes:
            self._attributes[name] = None  # of a class that is its own base
            self._attributes[name] = self._read_attributes(name)
        return self._attributes[name]

    def _read_attributes(self, name: str) -> set[str] | None:
        if len(self.classes.get(name, ())) != 1:
            return None
        _module, node = self.classes[name][0]
        found: set[str] = set()
        for base in node.bases:
            word = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
            if word in ("object", "ABC", "Generic", "Protocol", ""):
                continue
            if (inherited := self.attributes(word)) is None:
                return None
            found |= inherited
        for item in node.body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.add(item.name)
                found |= {
                    one.attr
                    for one in ast.walk(item)
                    if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
                    and isinstance(one.value, ast.Name) and one.value.id == "self"
                }  # fmt: skip
                if item.name in ("__getattr__", "__getattribute__"):
                    return None
            elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                found.add(item.target.id)
            elif isinstance(item, ast.Assign):
                found |= {one.id for target in item.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        return found

    def fields(self, name: str, depth: int = 0) -> set[str] | None:
        """Return the arguments of a dataclass; None where it is none, or a base is not known."""
        if len(self.classes.get(name, ())) != 1 or depth > 12:
            return None
        _module, node = self.classes[name][0]
        found: set[str] = set()
        for base in node.bases:
            word = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
            inherited = self.fields(word, depth + 1)
            if inherited is None and word in self.classes:
                return None
            found |= inherited or set()
        if not any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            return None
        return found | {
            i.target.id for i in node.body if isinstance(i, ast.AnnAssign) and isinstance(i.target, ast.Name)
        }

    def all_names(self) -> Iterator[str]:
        """Yield `module.name`, the module without that of the package; `Class.attribute` and `callable(argument`."""
        for module in [*self.trees, *(module for module in self._names if module not in self.trees)]:
            yield f"{module}:"
            for name in self.names(module):
                if not name.startswith("_"):
                    yield f"{module}:{name}"
        functions: dict[str, list[ast.arguments]] = defaultdict(list)
        for module, tree in self.trees.items():
            if not DETAILED.match(self.files[module]):
                continue
            for node in tree.body:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    functions[node.name].append(node.args)
                elif isinstance(node, ast.ClassDef) and len(self.classes[node.name]) == 1:
                    for attribute in self.attributes(node.name) or ():
                        if not attribute.startswith("__"):
                            yield f"{node.name}.{attribute}"
                    for argument in self.fields(node.name) or ():
                        yield f"{node.name}.__init__({argument}"
                    for item in node.body:
                        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                            functions[f"{node.name}.{item.name}"].append(item.args)
        for name, signatures in functions.items():
            if len(signatures) == 1 and not signatures[0].kwarg:
                for argument in (*signatures[0].args, *signatures[0].kwonlyargs):
                    if argument.arg not in ("self", "cls"):
                        yield f"{name}({argument.arg}"


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those below conditions and `try` too."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from _statements(getattr(node, part, []))
        for handler in node.handlers if isinstance(node, ast.Try) else ():
            yield from _statements(handler.body)


def make_table(releases: dict[str, set[str]]) -> dict[str, Any]:
    """Return what changed: releases, and by `FIRST-LAST` (their places) the names that exist there alone."""
    versions = list(releases)
    places: dict[str, list[int]] = defaultdict(list)
    for place, names in enumerate(releases.values()):
        for name in names:
            places[name].append(place)
    owners = {name.partition(".")[0].partition("(")[0] for name in places if ":" not in name}
    complete = {owner for owner in owners}
    spans: dict[str, list[str]] = defaultdict(list)
    for name, found in places.items():
        first, last = found[0], found[-1]
        if len(found) == last - first + 1 and (first, last) != (0, len(versions) - 1):
            spans[f"{first}-{last}"].append(name)
    return {
        "versions": versions,
        "names": {span: sorted(names) for span, names in sorted(spans.items())},
        "n": len(complete),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=list(PACKAGES), metavar="PACKAGE")
    args = parser.parse_args()
    cache = Path(tempfile.gettempdir()) / "rlbox-api-names"
    cache.mkdir(exist_ok=True)
    index = ask_uv_for_index_url_or_empty()
    table: dict[str, Any] = json.loads(lzma.decompress(TABLE.read_bytes())) if TABLE.exists() else {}
    for package in args.packages:
        releases: dict[str, set[str]] = {}
        for version, url in list_wheels(index, package).items():
            kept = cache / f"{package}-{version}.json"
            if not kept.exists():
                try:
                    kept.write_text(json.dumps(sorted(set(Package(read_sources(url, PACKAGES[package])).all_names()))))
                except (OSError, ValueError, zipfile.BadZipFile) as error:
                    print(f"{package} {version}: {error}", file=sys.stderr)
                    continue
            releases[version] = set(json.loads(kept.read_text()))
            print(package, version, len(releases[version]), flush=True)
        table[package] = make_table(releases)
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    TABLE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(len(text), TABLE.stat().st_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
