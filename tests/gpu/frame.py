"""The image of a target without its packages: what a carried place is laid into on a machine without network.

`frame.py PROJECT OUT NAME…` renders each target's build context, leaves out of its Dockerfile the stages that bring
packages, git trees and patches, builds the rest with the engine here, and writes OUT/NAME.tar (the file system) and
OUT/NAME.json (its configuration: environment, entry point).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

CA = "/etc/ssl/certs/ca-certificates.crt"
KEPT = ("rlbox.os", "rlbox.tools", "rlbox.runtime", "rlbox.venv", "rlbox.fixes", "rlbox.files", "rlbox.other")
"""The stages of a rendered Dockerfile that bring no package of the stack; the last stage has no name."""
STAGE = re.compile(r"FROM \S+(?: AS (\S+))?$")
COPY = re.compile(r"COPY --link --from=(\S+) ")


def without_packages(dockerfile: str) -> str:
    """Return a rendered Dockerfile without the stages of packages, git trees and patches, and without their copies."""
    lines, keep = [], True
    for line in dockerfile.splitlines():
        if stage := STAGE.match(line):
            keep = stage.group(1) in (None, *KEPT)
        copied = COPY.match(line)
        if keep and (copied is None or copied.group(1) in KEPT):
            lines.append(line)
    return "\n".join(lines) + "\n"


def build_frames(project: Path, out: Path, names: Iterable[str]) -> None:
    """Build and export the frame of each target."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        with tempfile.TemporaryDirectory(dir=out) as folder:
            context = Path(folder, "context")
            words = ["render", name, "--project", str(project), "--context", str(context), "--quiet"]
            subprocess.run([sys.executable, "-m", "rlbox", *words], check=True)
            dockerfile = context / "Dockerfile"
            dockerfile.write_text(without_packages(dockerfile.read_text("utf-8")), "utf-8")
            tag = f"rlbox-frame:{name}"
            words = [
                "--network=host",
                "--provenance=false",
                f"--secret=id=ca,src={CA}",
                "--build-arg=SOURCE_DATE_EPOCH=1735689600",
            ]
            subprocess.run(["docker", "buildx", "build", "--load", *words, f"--tag={tag}", str(context)], check=True)
            export(tag, out / name)


def export(tag: str, goal: Path) -> None:
    """Write an image's file system and its configuration to GOAL.tar and GOAL.json."""
    inspected = subprocess.run(["docker", "image", "inspect", tag], check=True, capture_output=True).stdout
    goal.with_suffix(".json").write_text(json.dumps(json.loads(inspected)[0]["Config"]), "utf-8")
    container = subprocess.run(["docker", "create", tag], check=True, capture_output=True, text=True).stdout.strip()
    try:
        subprocess.run(["docker", "export", f"--output={goal.with_suffix('.tar')}", container], check=True)
    finally:
        subprocess.run(["docker", "rm", container], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["docker", "rmi", tag], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    build_frames(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
