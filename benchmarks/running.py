"""Goals 9 and 10: a command in a fresh container, and a further stage in one that is up."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise

from benchmarks.pairs import Case, Sample, Unusable
from benchmarks.place import WARM_UP, Place, run
from benchmarks.watching import unix

STAGES = 12
JOB = 'title = "Stages that do nothing"\ntarget = "{target}"\n'
STAGE = """
[[stages]]
name = "s{number}"
title = "nothing"
command = ["true"]
limits = {{ total_s = 60, silence_s = 60 }}
"""


def against_plain_run(place: Place) -> Sample:
    """`rlbox shell T -- true` against the shortest `docker run` of the same image."""
    target = place.built_target()
    anchor = place.case(("docker", "run", "--rm", "--network", "host", _image(target), "true"), name="docker run")
    return place.compare(_shell(place, target), anchor)


def against_same_run(place: Place) -> Sample:
    """`rlbox shell T -- true` against `docker run` with the limits, mounts and labels that rlbox sets."""
    target = place.built_target()
    command = place.output("shell", target, "--data", _data(place), "--dry-run", "--", "true")["command"]
    name = f"--name=rlbox-bench-{place.folder.name}"
    argv = tuple(name if word.startswith("--name=") else word for word in command)
    return place.compare(_shell(place, target), place.case(argv, name="docker run, same flags"))


def further_stage(place: Place) -> Sample:
    """From the start of a stage that does nothing to the start of the next, against `docker exec C true`."""
    target = place.built_target()
    words = ("docker", "run", "--rm", "--detach", "--init", "--network=none", _image(target), "sleep", "3600")
    container = run(words).strip()
    place.on_close.callback(subprocess.run, ["docker", "rm", "--force", container], check=False, capture_output=True)
    stages = iter(_stage_seconds(place, target))
    anchor = place.case(("docker", "exec", container, "true"), name="docker exec")
    return place.compare(lambda: next(stages), anchor)


def _image(target: str) -> str:
    return f"rlbox/{target}:latest"


def _shell(place: Place, target: str) -> Case:
    return place.rlbox("shell", target, "--", "true", env={"RLBOX_DATA": _data(place)})


def _data(place: Place) -> str:
    folder = place.folder / "data"
    folder.mkdir(exist_ok=True)
    return str(folder)


def _stage_seconds(place: Place, target: str) -> list[float]:
    """Return times from one stage's start to the next's, as the runs' own records say, enough for all rounds."""
    count, stages = place.rounds + WARM_UP, place.pick(STAGES, 2)
    jobs = place.project / "jobs"
    jobs.mkdir(exist_ok=True)
    (jobs / "nothing.toml").write_text(
        JOB.format(target=target) + "".join(STAGE.format(number=n) for n in range(stages))
    )
    found: list[float] = []
    while len(found) < place.pick(count, 1):
        case = place.rlbox("run", "nothing", "--data", _data(place))
        run(case.argv, env=case.env, cwd=case.cwd)
        newest = max((place.folder / "data" / "runs").iterdir(), key=lambda path: path.name)
        found += _gaps(json.loads((newest / "run.json").read_text()))
    return found


def _gaps(record: dict[str, list[dict[str, str]]]) -> list[float]:
    starts = [unix(stage["started_at"]) for stage in record["stages"]]
    gaps = [after - before for before, after in pairwise(starts)]
    if not gaps or min(gaps) <= 0:
        raise Unusable(f"the record's times are too coarse: {gaps}")
    return gaps
