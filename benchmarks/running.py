"""Goals 9 and 10: a command in a fresh container, and a further stage in one that is up."""

from __future__ import annotations

import json
import shlex
import subprocess
from itertools import pairwise

from benchmarks.pairs import Case, Sample, Unusable
from benchmarks.place import WARM_UP, OwnImage, Place, run
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
    """`rlbox shell T -- true` against the shortest way to the same with docker: a network, a container in it, gone."""
    own, network = place.kept.get(OwnImage), f"rlbox-bench-{place.folder.name}"
    script = "docker network create $0 && docker run --rm --network $0 $1 true; docker network rm $0"
    anchor = place.case(("sh", "-c", script, network, own.image), name="docker run")
    return place.compare(_shell(own), anchor)


def against_same_run(place: Place) -> Sample:
    """`rlbox shell T -- true` against docker with the network, limits, mounts and labels that rlbox sets."""
    own = place.kept.get(OwnImage)
    shown = own.place.output("shell", own.name, "--data", str(own.data), "--dry-run", "--", "true")
    (name,) = (word.partition("=")[2] for word in shown["command"] if word.startswith("--name="))
    script = "\n".join(shlex.join(shown[part]) for part in ("before", "command", "after") if shown[part])
    argv = ("sh", "-c", script.replace(name, f"rlbox-bench-{place.folder.name}"))
    return place.compare(_shell(own), place.case(argv, name="docker run, same flags"))


def further_stage(place: Place) -> Sample:
    """From the start of a stage that does nothing to the start of the next, against `docker exec C true`."""
    own = place.kept.get(OwnImage)
    words = ("docker", "run", "--rm", "--detach", "--init", "--network=none", own.image, "sleep", "3600")
    container = run(words).strip()
    place.on_close.callback(subprocess.run, ["docker", "rm", "--force", container], check=False, capture_output=True)
    stages = iter(_stage_seconds(own, place.rounds + WARM_UP))
    return place.compare(lambda: next(stages), place.case(("docker", "exec", container, "true"), name="docker exec"))


def _shell(own: OwnImage) -> Case:
    return own.place.rlbox("shell", own.name, "--", "true", env={"RLBOX_DATA": str(own.data)})


def _stage_seconds(own: OwnImage, count: int) -> list[float]:
    """Return at least `count` times from one stage's start to the next's, as the runs' own records say."""
    jobs, stages = own.place.project / "jobs", own.place.pick(STAGES, 3)
    jobs.mkdir(exist_ok=True)
    (jobs / "nothing.toml").write_text(
        JOB.format(target=own.name) + "".join(STAGE.format(number=n) for n in range(stages))
    )
    found: list[float] = []
    while len(found) < count:
        case = own.place.rlbox("run", "nothing", "--data", str(own.data))
        run(case.argv, env=case.env, cwd=case.cwd)
        newest = max((own.data / "runs").iterdir(), key=lambda path: path.name)
        found += _gaps(json.loads((newest / "run.json").read_text()))
    return found


def _gaps(record: dict[str, list[dict[str, str]]]) -> list[float]:
    starts = [unix(stage["started_at"]) for stage in record["stages"]]
    gaps = [after - before for before, after in pairwise(starts)]
    if not gaps or min(gaps) <= 0:
        raise Unusable(f"the record's times are too coarse: {gaps}")
    return gaps
