"""plan/apply: facts of a machine in, changes out."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rlbox.provision.desired import (
    DesiredState,
    FileOrLinkToInstall,
    GitOrHttpArtifact,
    merge_env_file_joining_paths,
    restore_original_env_file_lines,
)
from rlbox.provision.layout import Layout
from rlbox.provision.plan import (
    InstalledFile,
    InstalledTreeFileOrVenv,
    InstallRecord,
    MachineState,
    PathState,
    compute_patch_manifest_sha256,
    format_venv_fingerprint,
    plan_apply_skipping_conflicts,
)

HOOK = FileOrLinkToInstall(path="/opt/rlbox/hooks/05-a.sh", fix_id_or_rlbox="a", text="hook\n")
LINK = FileOrLinkToInstall(path="/usr/bin/ray", fix_id_or_rlbox="ray-not-on-path", link_target="/opt/venv/bin/ray")
ENVIRONMENT = FileOrLinkToInstall(
    path="/etc/environment",
    fix_id_or_rlbox="path",
    text='PATH="/opt/venv/bin:/bin"\n',
    rlbox_lines='PATH="/opt/venv/bin:/bin"\n',
)
WORDS = GitOrHttpArtifact(name="words", kind="http", install_path="/opt/words.txt", sha256="b" * 64)
WANTED = DesiredState(
    target="mine",
    lock="l" * 64,
    python="3.11",
    layout=Layout(data_dir="/data"),
    files=(HOOK, LINK),
    parts=(),
    packages={"six": "1.16.0"},
    requirements="six==1.16.0\n",
    build_constraints="",
    apt_packages=(),
    patch_manifest="",
    patch_programs={},
    download_bytes=1000,
)


def file(text: str, mode: str = "0644", **more: object) -> PathState:
    return PathState(kind="file", sha256=hashlib.sha256(text.encode()).hexdigest(), mode=mode, text=text, **more)  # type: ignore[arg-type]


def at_lock(desired: DesiredState = WANTED, **changes: object) -> MachineState:
    """A machine that is at the lock, but for `changes`."""
    paths = {
        HOOK.path: file("hook\n"),
        LINK.path: PathState(kind="link", to=LINK.link_target),
        WORDS.install_path: file("words\n"),
    }
    record = InstallRecord(
        target="mine",
        lock=desired.lock,
        state="laid",
        laid={path: InstalledFile(now=path_state) for path, path_state in paths.items() if path != WORDS.install_path},
        parts={part.install_path: InstalledTreeFileOrVenv(sha256=part.sha256) for part in desired.parts},
        environment=InstalledTreeFileOrVenv(),
        patches=compute_patch_manifest_sha256(desired) or "",
    )
    facts = MachineState(
        paths=paths,
        record=record,
        venv_fingerprint=format_venv_fingerprint(desired),
        venv_packages=dict(desired.packages),
        installed_apt_packages=frozenset(desired.apt_packages),
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def kinds(facts: MachineState, desired: DesiredState = WANTED) -> list[tuple[str, str]]:
    return [(step.kind, step.path) for step in plan_apply_skipping_conflicts(desired, facts).steps]


def test_a_machine_at_the_lock_has_nothing_to_change() -> None:
    for desired in (WANTED, replace(WANTED, parts=(WORDS,), patch_manifest="{}")):
        plan = plan_apply_skipping_conflicts(desired, at_lock(desired))
        assert (plan.steps, plan.skipped) == ((), ())


def test_an_empty_machine_gets_everything_in_order() -> None:
    desired = replace(WANTED, apt_packages=("git",), parts=(WORDS,), patch_manifest="{}")
    order = [kind for kind, _ in kinds(MachineState(paths={}), desired)]
    assert order == ["packages", "environment", "part", "patches", "file", "link"]


@pytest.mark.parametrize(
    ("changes", "old", "fresh"),
    [
        ({"venv_fingerprint": "", "is_incomplete_venv": True}, "half made", True),
        ({"venv_fingerprint": "", "is_foreign_venv": True}, "not one of rlbox", True),
        ({"venv_fingerprint": "", "venv_packages": {}}, "nothing", False),
        ({"venv_fingerprint": "another"}, "of another lock", False),
        ({"venv_packages": {"six": "1.17.0"}}, "not as the lock says", False),
        ({"venv_packages": {"six": "1.16.0", "pip": "24"}}, "not as the lock says", False),
    ],
)
def test_the_environment(changes: dict[str, object], old: str, fresh: bool) -> None:
    plan = plan_apply_skipping_conflicts(WANTED, at_lock(**changes))
    assert [step.old_description for step in plan.steps] == [old]
    assert plan.recreates_venv == fresh
    assert plan.steps[0].keeps_backup == ("is_foreign_venv" in changes)


def test_other_patches_make_the_environment_anew() -> None:
    desired = replace(WANTED, patch_manifest='{"patches": [1]}')
    assert [kind for kind, _ in kinds(at_lock(), desired)] == ["environment", "patches"]
    assert plan_apply_skipping_conflicts(desired, at_lock()).recreates_venv


def test_what_lies_in_an_environment_that_goes_is_laid_again() -> None:
    conf = FileOrLinkToInstall(path="/opt/venv/pip.conf", fix_id_or_rlbox="constraints", text="conf\n")
    desired = replace(WANTED, files=(conf,))
    facts = at_lock(paths={conf.path: file("conf\n")}, record=None, is_incomplete_venv=True, venv_fingerprint="")
    assert kinds(facts, desired) == [("environment", "/opt/venv"), ("file", conf.path)]


def test_a_file_of_the_users_is_kept_and_one_of_ours_is_not() -> None:
    theirs = at_lock(
        record=None, paths={HOOK.path: file("theirs\n"), LINK.path: PathState(kind="link", to=LINK.link_target)}
    )
    assert [step.keeps_backup for step in plan_apply_skipping_conflicts(WANTED, theirs).steps] == [True]
    ours = at_lock()
    changed = replace(WANTED, files=(replace(HOOK, text="a new hook\n"), LINK))
    assert [(step.path, step.keeps_backup) for step in plan_apply_skipping_conflicts(changed, ours).steps] == [
        (HOOK.path, False)
    ]


@pytest.mark.parametrize(
    ("path_state", "reason"),
    [
        (PathState(kind="folder"), "a folder is in its place"),
        (PathState(kind="other"), "no plain file is in its place"),
        (PathState(kind="link", to="python3.11", program=True), "other environments may link to"),
    ],
)
def test_what_cannot_be_replaced_is_named(path_state: PathState, reason: str) -> None:
    plan = plan_apply_skipping_conflicts(
        WANTED, at_lock(record=None, paths={HOOK.path: file("hook\n"), LINK.path: path_state})
    )
    assert plan.steps == ()
    assert [(row.item, reason in row.reason) for row in plan.skipped] == [(LINK.path, True)]


def test_what_an_earlier_lock_laid_is_taken_away() -> None:
    desired = replace(WANTED, files=(HOOK,))
    assert kinds(at_lock(), desired) == [("remove", LINK.path)]
    facts = at_lock(replace(WANTED, parts=(WORDS,)))
    assert kinds(facts) == [("remove", WORDS.install_path)]


def test_a_part_that_is_there_and_not_ours_is_kept() -> None:
    desired = replace(WANTED, parts=(WORDS,))
    facts = at_lock()
    step = plan_apply_skipping_conflicts(desired, facts).steps[0]
    assert (step.kind, step.keeps_backup) == ("part", True)
    torn = at_lock(
        desired, record=replace(at_lock(desired).record, parts={WORDS.install_path: InstalledTreeFileOrVenv()})
    )  # type: ignore[type-var]
    assert kinds(torn, desired) == [("part", WORDS.install_path)]


def test_apt_packages_that_cannot_be_installed_are_named() -> None:
    desired = replace(WANTED, apt_packages=("git", "tmux"))
    plan = plan_apply_skipping_conflicts(
        desired, at_lock(installed_apt_packages=frozenset(["git"]), apt_unavailable_reason="only root can install them")
    )
    assert plan.steps == ()
    assert [(row.item, row.reason) for row in plan.skipped] == [("apt packages tmux", "only root can install them")]
    assert kinds(at_lock(installed_apt_packages=frozenset(["git"])), desired) == [("packages", "apt")]


def test_a_platforms_file_keeps_its_lines() -> None:
    desired = replace(WANTED, files=(ENVIRONMENT,))
    facts = at_lock(record=None, paths={ENVIRONMENT.path: file("ID=4\nPATH=/conda/bin:/bin\n", "0600")})
    (step,) = plan_apply_skipping_conflicts(desired, facts).steps
    assert step.file
    assert step.file.text == 'ID=4\nPATH="/opt/venv/bin:/bin:/conda/bin"\n'
    assert step.file.mode == "0600"
    again = at_lock(record=None, paths={ENVIRONMENT.path: file(step.file.text, "0600")})
    assert plan_apply_skipping_conflicts(desired, again).steps == ()


LINES = some.lists(
    some.one_of(
        some.sampled_from(["", "# note", "export A='b c'", "PATH=/x:/y", 'PATH="/y"\r', "PATH=", "no equals", "B=2\r"]),
        some.text(some.characters(exclude_characters="\n"), max_size=12),
    ),
    max_size=6,
)


@given(LINES)
def test_merging_twice_is_merging_once_and_can_be_undone(lines: list[str]) -> None:
    theirs = "".join(f"{line}\n" for line in lines)
    ours = 'PATH="/opt/venv/bin:/bin"\n'
    merged = merge_env_file_joining_paths(theirs, ours)
    assert merge_env_file_joining_paths(merged, ours) == merged
    assert [line for line in theirs.split("\n") if "PATH=" not in line] == [
        line for line in merged.split("\n") if "PATH=" not in line
    ]
    if theirs.count("PATH=") < 2:
        assert restore_original_env_file_lines(merged, ours, theirs) == theirs


def test_a_path_that_rlbox_init_wrote_stays() -> None:
    """It has the folders of hooks in front; without this a machine was never at its lock once the script had run."""
    ours = 'PATH="/opt/venv/bin:/bin"\n'
    written = 'PATH="/opt/rlbox/shims:/opt/venv/bin:/bin:/srv/me"\n'
    assert merge_env_file_joining_paths(written, ours) == written
    conda = 'PATH="/opt/conda/bin:/opt/venv/bin:/bin"\n'
    assert merge_env_file_joining_paths(conda, ours) == 'PATH="/opt/venv/bin:/bin:/opt/conda/bin"\n'


def test_a_prefix_moves_paths_and_nothing_else() -> None:
    layout = Layout(prefix="/srv/me/place", data_dir="/data")
    text = "PATH=/opt/venv/bin:/opt/rlbox/bin [ -x '/opt/venv' ] /opt/venv-old /mnt/opt/venv ${X}/opt/venv /usr/bin/ray"
    moved = layout.prefix_paths_in_text(text, ("/opt/venv", "/opt/rlbox"))
    assert moved == (
        "PATH=/srv/me/place/opt/venv/bin:/srv/me/place/opt/rlbox/bin [ -x '/srv/me/place/opt/venv' ] "
        "/opt/venv-old /mnt/opt/venv ${X}/opt/venv /usr/bin/ray"
    )
    assert layout.prefix_paths_in_text(moved, ("/opt/venv", "/opt/rlbox")) == moved
    assert Layout(data_dir="/data").prefix_paths_in_text(text, ("/opt/venv",)) == text
