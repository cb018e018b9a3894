"""`rlbox apply` on a rented machine: root in a container without Docker or systemd, read-only control groups, an odd
/etc/environment, no network. The files come from a store that was carried there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from applybox import give
from following import Follow
from rentedbox import ODD, Machine, rented

from rlbox.artifacts.object_store import ObjectStore


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the target `small`, and a store with its files."""
    folder = tmp_path_factory.mktemp("carried")
    give(folder / "project", ObjectStore(folder / "store"), {"alpha": "1.0", "beta": "2.0"}, python="3.11")
    (folder / "odd").write_text(ODD)
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
    folder.parent.chmod(0o755)
    return folder


@pytest.fixture
def machine(tiny_project: Path, carried: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A machine of the test's own; parameters are further words of `docker run`."""
    with rented(carried, getattr(request, "param", ())) as made:
        yield made


@pytest.mark.slow
def test_three_times_on_a_rented_machine_and_back(machine: Machine) -> None:
    before = machine.files()
    first = machine.apply("--json")
    assert first.data["state"] == "applied", first.err
    assert first.data["checks"]["failed"] == [], first.data["checks"]
    kept = [machine.run("cat", path).out for path in first.data["kept"]]
    assert sorted(kept) == sorted([ODD, "#!/bin/sh\necho of the user\n"])
    assert "apt packages hello" in {row["what"] for row in first.data["left"]}
    _check_environment_file(machine)
    assert machine.run("bash", "-lc", "command -v python; echo $SMALL_WORDS").out == (
        "/opt/venv/bin/python\nit's $HOME, as it is\n"
    )
    assert machine.run("env", "-i", "sh", "-c", "python -c 'import alpha; print(alpha.patched)'").out == "True\n"
    once = machine.files()
    for _ in range(2):
        again = machine.apply("--json")
        assert (again.data["state"], again.data["steps"]) == ("unchanged", [])
    assert machine.files() == once
    machine.apply("--remove")
    assert machine.files() == before


def _check_environment_file(machine: Machine) -> None:
    """The platform's lines are there, its folders behind the stack's."""
    text = machine.run("cat", "/etc/environment").out
    theirs = [line for line in ODD.splitlines() if not line.startswith("PATH=")]
    assert [line for line in text.splitlines() if not line.startswith("PATH=")] == theirs
    path = next(line for line in text.splitlines() if line.startswith("PATH="))
    assert path.startswith('PATH="/opt/venv/bin:/opt/rlbox/bin:')
    assert "/opt/conda/bin:/usr/local/nvidia/bin" in path


@pytest.mark.slow
def test_what_the_platform_writes_meanwhile_stays(machine: Machine) -> None:
    machine.apply("--no-packages")
    machine.run("sh", "-c", "echo LATER=1 >>/etc/environment")
    assert machine.apply("--no-packages", "--json").data["state"] == "unchanged"
    machine.apply("--remove")
    assert machine.run("cat", "/etc/environment").out == ODD + "LATER=1\n"
    assert machine.run("/usr/local/bin/python").out == "of the user\n"


@pytest.mark.slow
def test_a_user_without_rights_gets_what_lies_below_the_environment(machine: Machine) -> None:
    before = machine.files()
    said = machine.apply("--json", user="tenant")
    assert said.data["prefix"] == "/srv/tenant/.cache/rlbox/places/small"
    assert {row["what"] for row in said.data["left"]} >= {"/etc/environment", "/etc/profile.d/10-rlbox-path.sh"}
    assert machine.apply("--json", user="tenant").data["state"] == "unchanged"
    after = machine.files()
    assert {path for path in after if not path.startswith("/srv/tenant/.cache")} == set(before)
    refused = machine.apply("--prefix", "/opt/mine", user="tenant", check=False)
    assert (refused.code, "cannot be written" in refused.err) == (5, True)
    refused = machine.apply("--prefix", "", user="tenant", check=False)
    assert (refused.code, "only root" in refused.err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [("--tmpfs=/small:size=3m,exec",)], indirect=True)
def test_a_full_disk_leaves_nothing_half_laid(machine: Machine) -> None:
    words = ("--prefix", "/small/place")
    for left in (0, 40, 200, 900):  # KiB
        machine.run("sh", "-c", f"dd if=/dev/zero of=/small/full bs=1k 2>/dev/null; truncate -s -{left}k /small/full")
        said = machine.apply(*words, check=False)
        if said.code:
            assert "full" in said.err or "space" in said.err, said.err
        for script in machine.run("find", "/small", "-name", "*.sh").out.split():
            assert machine.run("tail", "-c", "1", script).out == "\n", f"{script} is half laid"
        machine.run("rm", "/small/full")
    machine.apply(*words)
    assert machine.run("/small/place/opt/venv/bin/python", "-c", "import alpha; print(alpha.patched)").out == "True\n"
    assert machine.apply(*words, "--json").data["state"] == "unchanged"


@pytest.mark.slow
def test_a_container_of_an_image_of_rlbox_is_told_so(machine: Machine) -> None:
    machine.run("sh", "-c", "mkdir -p /opt/rlbox/share && cp /srv/project/images/small/lock.json /opt/rlbox/share/")
    said = machine.apply(check=False)
    assert (said.code, "it is at its lock" in said.err) == (5, True)


APT = """#!/bin/sh
case "$*" in *--download-only*) exit 0 ;; esac
echo "E: dpkg was interrupted" >&2
exit 100
"""


def test_apt_that_cannot_install_is_left_alone(machine: Machine, follow: Follow) -> None:
    """As with a dpkg that somebody else broke."""
    machine.run("sh", "-c", f"cat > /usr/local/bin/apt-get <<'END'\n{APT}END\nchmod 755 /usr/local/bin/apt-get")
    follow.rlbox = lambda *words: machine.apply(*words[2:], check=False)
    step = follow("apply", "small")
    follow.again(step, *step.options({})[:1])
