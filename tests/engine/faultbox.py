"""Fault tests: a faulty machine in a container, without a fix and with it, as a table of `tests/faults/` says."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import uuid
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from enginebox import CHECKOUT

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml, merge_tables_and_named_lists
from rlbox.engine.container import format_resource_args_without_gpus
from rlbox.errors import SpecError
from rlbox.fixes.conditions import evaluate_fix, map_packages_to_version_or_empty
from rlbox.fixes.fix import BakedFile, Fix
from rlbox.fixes.patches import has_patches_to_apply, render_patch_manifest_json, resolve_patches_with_skipped
from rlbox.fixes.render import (
    RenderedFixes,
    build_fix_template_values,
    render_fix_template,
    render_fixes_or_raise_refusal,
)
from rlbox.foreign import parse_untrusted_toml
from rlbox.image.names import project_image_tag
from rlbox.image.plan import build_container_defaults
from rlbox.system.files import cache_path
from rlbox.target.target import DEFAULTS, Target

FAULTS = CHECKOUT / "tests/faults"
FIXES = CHECKOUT / "templates/fixes"
BARE = ("ca-certificates", "iproute2", "procps", "python3", "python3-venv")
CC = (*BARE, "build-essential", "cron", "curl", "git", "htop", "libnuma1", "ninja-build", "openssh-client")
CC += ("openssh-server", "python3-dev", "python3-pip", "tmux")
STACK = {"bare": ("six==1.16.0",), "cc": ("numpy==1.26.4", "pip==24.3.1", "setuptools==75.8.0", "wheel==0.45.1")}
SPEC = """
title = "lab of the fault tests"
[base]
bootstrap = "debian:bookworm"
packages = {packages}
[[stack]]
name = "tools"
packages = {stack}
[run]
shm_gib = 0.25
[disk]
mount = "/data"
"""
# The command line with an empty catalogue: an image that no fix has touched.
UNFIXED = """import sys, rlbox.fixes.catalogue as l
l.load_fix_catalogue = lambda project: ()
from rlbox.cli import main
sys.exit(main())
"""
NOBODY = 12345
SCRIPTS = ("entrypoint.sh", "init.sh", "install.sh")  # of what a lab image is made
DEED = """
if ! sh /lab/setup.sh; then echo "@@setup failed"; exit 9; fi
if [ -e /lab/manifest.json ] && ! python3 /lab/apply_patches.py --root / /lab/manifest.json >/lab/patches.log 2>&1; then
    cat /lab/patches.log
    echo "@@setup failed"
    exit 9
fi
exec {switch} sh /opt/rlbox/libexec/entrypoint.sh sh /lab/deed.sh
"""
CURE = """
( {cure}
) || exit
exec sh /lab/check.sh
"""
SCRIPT = """
echo "@@check"
sh /lab/check.sh 2>&1
echo "@@checked $?"
sh /lab/fault.sh 2>&1
echo "@@ended $?"
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One table of a file of `tests/faults`."""

    id: str
    fault: str = ""
    shows: str = ""
    passes: str = ""
    image: str = "bare"
    image_with: str = ""
    target: str = ""
    options: tuple[str, ...] = ()
    user: str = "root"
    setup: str = ""
    cure: str = ""
    refused: str = ""
    checks: bool = True
    timeout_s: float = 60

    def spec(self) -> Target:
        """The lab's target with what the case lays over it."""
        lab = parse_untrusted_toml(SPEC.format(packages=list(BARE), stack=["six==1.16.0"]))
        over = parse_untrusted_toml(self.target)
        data = {
            **merge_tables_and_named_lists(merge_tables_and_named_lists(load_toml(DEFAULTS), lab), over),
            "name": "lab",
        }
        return validate_spec(Target, data, f"tests/faults: {self.id}.target")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a container showed."""

    output: str
    exit: int
    check_exit: int
    check_output: str


def cases() -> list[str]:
    """The ids that have a fault test."""
    return sorted(_tables())


def load_case(name: str) -> Case:
    """The fault test of a fix."""
    data = _tables()[name]
    return Case(id=name, **{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})


@functools.cache
def _tables() -> dict[str, dict[str, Any]]:
    """The fault tests of all files, by the id of their fix."""
    return {name: table for path in FAULTS.glob("*.toml") for name, table in load_toml(path).items()}


def load_fix(name: str) -> Fix:
    """One fix alone, so that a broken file of another one does not matter."""
    return validate_spec(Fix, {**load_toml(FIXES / f"{name}.toml"), "id": name}, f"templates/fixes/{name}.toml")


def problems(case: Case, fix: Fix) -> list[str]:
    """What is wrong with a fix and its fault test; nothing when the fault is there without it and gone with it."""
    target = case.spec()
    versions = map_packages_to_version_or_empty(target, None)
    verdict = evaluate_fix(fix, target, versions)
    if not verdict.applies:
        return [f"the fix does not apply to the target of its fault test: {'; '.join(verdict.reasons)}"]
    found = _refusal(case, fix, target) if case.refused else []
    if case.cure:
        return found + cured(case, fix, target)
    if case.fault:
        found += without_it(case, fix, target)
    if case.fault and not case.refused:
        found += with_it(case, fix, target, render_fixes_or_raise_refusal([fix], target, versions))
    return found


def cured(case: Case, fix: Fix, target: Target) -> list[str]:
    """What is wrong with a fix that is a check alone: it fails on the faulty machine, and passes once that is cured."""
    seen = show(replace(case, fault=CURE.format(cure=case.cure)), case.image, target, None, _check(fix, target))
    found = [] if seen.check_exit else ["the check passes on the faulty machine"]
    if not re.search(case.shows, seen.check_output):
        found.append(f"the check says something else: {seen.check_output}")
    return found if seen.exit == 0 else [*found, f"the check fails after the cure: {seen.output}"]


def _refusal(case: Case, fix: Fix, target: Target) -> list[str]:
    try:
        render_fixes_or_raise_refusal([fix], target, map_packages_to_version_or_empty(target, None))
    except SpecError as error:
        fits = re.search(case.refused, f"{error.what}\n{error.next_step}")
        return [] if fits else [f"refused with another message: {error.what}"]
    return ["the spec is not refused"]


def without_it(case: Case, fix: Fix, target: Target) -> list[str]:
    """What is wrong with the fault: it must be seen without the fix."""
    check = _check(fix, target) if case.checks and not case.refused else ""
    seen = show(case, case.image, target, None, check)
    found = [] if re.search(case.shows, seen.output) else [f"the fault does not show without the fix:\n{seen.output}"]
    if fix.check and case.checks and not case.refused and seen.check_exit == 0:
        found.append("the check passes without the fix")
    return found


def with_it(case: Case, fix: Fix, target: Target, baked: RenderedFixes) -> list[str]:
    """What is wrong with the fix: the fault must be gone with it, and its check must pass."""
    image = (case.image_with or case.image) if fix.bake.packages else case.image
    if missing := set(fix.bake.packages) - lab_packages(image):
        return [f"image {image} of the lab lacks {', '.join(sorted(missing))}"]
    seen = show(case, image, target, baked, _check(fix, target) if case.checks else "")
    found = []
    if seen.exit != 0 or re.search(case.shows, seen.output):
        found.append(f"the fault is there with the fix (exit {seen.exit}):\n{seen.output}")
    if case.passes and not re.search(case.passes, seen.output):
        found.append(f"with the fix the output does not show {case.passes!r}:\n{seen.output}")
    if fix.check and case.checks and seen.check_exit != 0:
        found.append(f"the check fails with the fix (exit {seen.check_exit}): {seen.check_output}")
    return found


def _check(fix: Fix, target: Target) -> str:
    values = build_fix_template_values(target, map_packages_to_version_or_empty(target, None))
    return render_fix_template(fix.check.run, values, fix.id) if fix.check else ""


def show(case: Case, image: str, target: Target, baked: RenderedFixes | None, check: str) -> Seen:
    """Run a case in a container of a lab image, with what a fix bakes or without."""
    laid = baked or render_fixes_or_raise_refusal([], target, map_packages_to_version_or_empty(target, None))
    limits = build_container_defaults(target, laid)
    inherited = lab_env(image)
    env = {
        name: text
        for name, text in laid.build_env_including_inherited(inherited).items()
        if text != inherited.get(name)
    }
    switch = "" if case.user == "root" else f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"
    name = f"rlbox-fault-{uuid.uuid4().hex[:12]}"
    network = [] if any(word.startswith("--net") for word in case.options) else ["--network=none"]
    words = ["create", "--rm", "--init", f"--name={name}", "--label=rlbox.test=fault", *network]
    words += format_resource_args_without_gpus(limits)
    words += [*case.options, *(f"--env={key}={value}" for key, value in env.items())]
    scripts = {"setup": case.setup or ":", "deed": SCRIPT, "check": check or "exit 0", "fault": case.fault or ":"}
    files = [BakedFile(path=f"/lab/{key}.sh", mode="0755", text=text) for key, text in scripts.items()]
    files += _patching(laid, target)
    try:
        _docker(*words, "--entrypoint=sh", tag(image), "-c", DEED.format(switch=switch))
        archive = _tar([*files, *laid.files], dict(laid.link_target_by_path))
        _docker("cp", "-", f"{name}:/", stdin=archive)
        output = _docker("start", "--attach", name, timeout_s=case.timeout_s, check=False)
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True)
    return _read(output)


def _patching(baked: RenderedFixes, target: Target) -> list[BakedFile]:
    """What changes the sources of the faulty machine as a build changes those of an image."""
    rows = resolve_patches_with_skipped(baked.fixes, target, map_packages_to_version_or_empty(target, None), {})
    if not has_patches_to_apply(rows):
        return []
    scripts = CHECKOUT / "templates/scripts"
    texts = {name: (scripts / name).read_text("utf-8") for name in ("apply_patches.py", "unified_diff.py")}
    texts["manifest.json"] = render_patch_manifest_json(target.name, rows)
    return [BakedFile(path=f"/lab/{name}", mode="0644", text=text) for name, text in texts.items()]


def _read(output: str) -> Seen:
    if "@@setup failed" in output or "@@checked" not in output:
        raise AssertionError(f"the faulty machine could not be made:\n{output}")
    _, _, rest = output.partition("@@check\n")
    check_output, _, rest = rest.partition("@@checked ")
    check_exit, _, rest = rest.partition("\n")
    shown, found, ended = rest.rpartition("@@ended ")
    return Seen(
        output=shown if found else rest,
        exit=int(ended) if found else -1,
        check_exit=int(check_exit),
        check_output=check_output.strip(),
    )


def _tar(files: list[BakedFile], links: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for file in files:
            info = tarfile.TarInfo(file.path.lstrip("/"))
            data = file.text.encode()
            info.size, info.mode = len(data), int(file.mode, 8)
            archive.addfile(info, io.BytesIO(data))
        for path, to in links.items():
            info = tarfile.TarInfo(path.lstrip("/"))
            info.type, info.linkname = tarfile.SYMTYPE, to
            archive.addfile(info)
    return buffer.getvalue()


def _docker(*words: str, stdin: bytes | None = None, timeout_s: float = 120, check: bool = True) -> str:
    try:
        done = subprocess.run(
            ["docker", *words], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as expired:
        if check:
            raise
        return (expired.stdout or b"").decode("utf-8", "replace") + f"\nstill running after {timeout_s:g} s\n"
    text = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0 or not check, f"docker {words[0]}: {text}"
    return text


def tag(image: str) -> str:
    """The tag of a lab image; it is built when it is not what the lab says now."""
    _build(image)
    return project_image_tag(Project(folder=_project()), f"lab-{image}")


@cache
def lab_env(image: str) -> dict[str, str]:
    """The environment of a lab image."""
    rows = json.loads(_docker("image", "inspect", tag(image), "--format={{json .Config.Env}}"))
    return dict(row.split("=", 1) for row in rows)


@cache
def lab_packages(image: str) -> frozenset[str]:
    """The apt packages of a lab image."""
    _build(image)
    lock = json.loads((_project() / f"images/lab-{image}/lock.json").read_text())
    return frozenset(row["name"] for row in lock["apt"])


def _project() -> Path:
    return cache_path("faultlab")


def lab_text(image: str) -> str:
    """The target of a lab image: what a fix may bake is no part of it."""
    if image != "local":
        return SPEC.format(packages=json.dumps(BARE if image == "bare" else CC), stack=json.dumps(STACK[image]))
    return re.sub(r"^\[env\]\n(?:[^\[].*\n|\n)*", "", (CHECKOUT / "images/local/target.toml").read_text(), flags=re.M)


@cache
def _build(image: str) -> None:
    folder = _project() / f"images/lab-{image}"
    folder.mkdir(parents=True, exist_ok=True)
    text = lab_text(image)
    if image == "local":
        lock = (CHECKOUT / "images/local/lock.json").read_text()
        (folder / "lock.json").write_text(lock.replace('"target": "local"', '"target": "lab-local"', 1))
    (folder / "target.toml").write_text(text)
    scripts = b"".join((CHECKOUT / "templates/scripts" / name).read_bytes() for name in SCRIPTS)
    wanted = hashlib.sha256(text.encode() + scripts).hexdigest()
    stamp = folder / "stamp"
    if stamp.is_file() and stamp.read_text() == wanted + _image_id(image):
        return
    for verb in ("lock", "build"):
        words = [sys.executable, "-c", UNFIXED, verb, f"lab-{image}", "--project", str(_project())]
        done = subprocess.run(words, capture_output=True, text=True, cwd=CHECKOUT, timeout=900)
        assert done.returncode == 0, done.stderr
    stamp.write_text(wanted + _image_id(image))


def _image_id(image: str) -> str:
    done = subprocess.run(
        [
            "docker",
            "image",
            "inspect",
            project_image_tag(Project(folder=_project()), f"lab-{image}"),
            "--format={{.Id}}",
        ],
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() if done.returncode == 0 else ""
