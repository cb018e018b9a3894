"""Goal 18: the install step of the whole lock, without any image."""

from __future__ import annotations

import subprocess

from uv import find_uv_bin

from benchmarks.pairs import Case, Sample
from benchmarks.place import Place, run
from benchmarks.stack import Stack
from rlbox.image.names import tag_to_file_name

TOOLS = "/opt/tools"
INSTALL = f"SOURCE_DATE_EPOCH=1 sh {TOOLS}/install.sh layers /usr/bin/python3"
# What was installed is put aside, and removed with the container: where files were removed in the minute before, ext4
# spends most of its time of making new ones on looking out for those (`recently_deleted`).
ASIDE = 'mkdir -p /old && into=$(mktemp -d -p /old) && for old in {}; do [ ! -e "$old" ] || mv "$old" "$into"; done'
UNDO = ASIDE.format("/out")
UNDO_ALL = ASIDE.format("/out /root/.cache/uv")
PIP = "/opt/pip/bin/pip install -q -r /opt/tools/pip.txt"
UNDO_PIP = ASIDE.format("/opt/pip") + " && python3 -m venv /opt/pip"


class Installs:
    """rlbox's install script, with uv's cache empty and then full, and pip: in turn in one container."""

    def __init__(self, place: Place) -> None:
        self._place, self._container = place, _container(place, place.kept.get(Stack))
        self.warm: Sample | None = None

    def measure(self, place: Place) -> Sample:
        """Return seconds of the script with an empty cache; `warm` is then the sample with a full one."""
        cases = [self._case(*words) for words in ((INSTALL, UNDO_ALL), (INSTALL, UNDO), (PIP, UNDO_PIP))]
        cold, warm, pip = place.interleave(*cases, warm_up=0)
        self.warm = Sample(ours=warm, anchor=pip)
        return Sample(ours=cold, anchor=pip)

    def _case(self, command: str, undo: str) -> Case:
        def before() -> None:
            run(("docker", "exec", self._container, "sh", "-c", undo))

        argv = ("docker", "exec", self._container, "sh", "-ec", command)
        return self._place.case(argv, name=command, before=before)


def cold_cache(place: Place) -> Sample:
    """uv's cache is empty: the first build on a machine."""
    return place.kept.get(Installs).measure(place)


def warm_cache(place: Place) -> Sample:
    """uv's cache holds every wheel, as the cache mount does when a layer is created again."""
    installs = place.kept.get(Installs)
    if installs.warm is None:
        installs.measure(place)
    sample, installs.warm = installs.warm, None
    assert sample
    return sample


def _container(place: Place, stack: Stack) -> str:
    """Start a container of the operating system alone with rlbox's script, uv and the lock in it."""
    tools = place.folder / "tools"
    tools.mkdir()
    context = stack.place.cache / "rlbox/contexts" / tag_to_file_name(stack.image)
    locked = (context / "wheels").glob("*/*/requirements.txt")  # STAGE/LAYER
    (tools / "wheels/all").mkdir(parents=True)
    (tools / "wheels/all/requirements.txt").write_text("".join(path.read_text() for path in sorted(locked)))
    (tools / "pip.txt").write_text(f"-i {stack.mirror.url}\n" + "\n".join(stack.pins()) + "\n")
    (tools / "install.sh").write_text((context / "scripts/install.sh").read_text())
    (tools / "sources").write_text(f"UV_DEFAULT_INDEX={stack.mirror.url}\n")
    mounts = [f"--volume={tools}:{TOOLS}", f"--volume={find_uv_bin()}:{TOOLS}/uv:ro"]
    mounts.append(f"--volume={tools}/sources:/run/secrets/sources:ro")
    mounts.append(f"--volume={tools}/wheels:/run/rlbox/wheels:ro")
    env = ["--env=PIP_NO_CACHE_DIR=1", "--env=PIP_TRUSTED_HOST=127.0.0.1", "--env=PIP_DISABLE_PIP_VERSION_CHECK=1"]
    words = ("docker", "run", "--detach", "--init", "--network=host", *mounts, *env, stack.base_image())
    container = run((*words, "sleep", "7200")).strip()
    place.on_close.callback(subprocess.run, ["docker", "rm", "--force", container], check=False, capture_output=True)
    return container
