"""Two nodes of four ranks: two containers on a network of their own, with clocks 90 s apart and in two zones."""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
import uuid
from pathlib import Path

from faultrecipe import Recipe
from labbox import LABEL, Ran, container_words, docker, image_of, lay_files, versions_of

NODES = ("gpu-a", "gpu-b")
ZONES = ("UTC", "Asia/Shanghai")
AHEAD_S = 90
"""How far the second node's clock is ahead."""
_TEED = re.compile(r"^\[default\d+\]:")
_CLOCK = "gcc -shared -fPIC -O1 /lab/clock.c -o /tmp/clock.so -ldl && export LD_PRELOAD=/tmp/clock.so\n"


def run_nodes(recipe: Recipe, env: str) -> Ran:
    """Run a recipe on both nodes at once: `NODE` is 0 and 1; what they print is kept merged as it came, and split."""
    mark = uuid.uuid4().hex[:10]
    network = f"train-{mark}"
    docker("network", "create", f"--label={LABEL}", "--internal", network)
    merged: list[str] = []
    consoles: list[list[str]] = [[], []]
    files: dict[str, str] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="faultlab-") as place:
            threads = []
            for number, node in enumerate(NODES):
                words = _node_words(recipe, env, number, node, f"{node}-{mark}", network, Path(place) / node)
                target = (words, recipe.timeout_s, node, consoles[number], merged)
                threads.append(threading.Thread(target=_follow, args=target))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for number, node in enumerate(NODES):
                files |= _split(node, number, consoles[number], Path(place) / node / "logs")
    finally:
        for node in NODES:
            docker("rm", "--force", f"{node}-{mark}", check=False)
        docker("network", "rm", network, check=False)
    forms = {"split": files, "merged": {"": "".join(merged)}}
    return Ran(code=None, logs={}, versions=versions_of(recipe, env), forms=forms)


def _node_words(recipe: Recipe, env: str, number: int, node: str, name: str, network: str, place: Path) -> list[str]:
    place.mkdir()
    words = [
        *container_words(recipe, env, name, lay_files(recipe, place)),
        f"--network={network}",
        f"--hostname={node}",
    ]
    words += [
        f"--network-alias={node}",
        f"--env=NODE={number}",
        f"--env=TZ={ZONES[number]}",
        f"--env=AHEAD_S={AHEAD_S}",
    ]
    script = f"{_CLOCK if number else ''}exec nice -n 19 bash launch.sh 2>&1"
    return [*words, image_of(env), "bash", "-c", script]


def _follow(words: list[str], timeout_s: float, node: str, own: list[str], merged: list[str]) -> None:
    process = subprocess.Popen(
        ["docker", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )
    name = next(word.partition("=")[2] for word in words if word.startswith("--name="))
    stop = threading.Timer(timeout_s, lambda: docker("rm", "--force", name, check=False))
    stop.start()
    for line in process.stdout or ():
        text = line.decode("utf-8", "replace")
        own.append(text)
        merged.append(f"{node}  | {text}")
    process.wait()
    stop.cancel()


def _split(node: str, number: int, console: list[str], logs: Path) -> dict[str, str]:
    """The launcher's own lines, and standard output and standard error of each rank in files of their own."""
    files = {f"{node}/launch.log": "".join(line for line in console if not _TEED.match(line))}
    for path in sorted(logs.glob("*/attempt_*/*/std*.log")):
        rank = number * 4 + int(path.parent.name)
        text = path.read_text(encoding="utf-8", errors="replace")
        if text:
            files[f"{node}/rank{rank}.{path.stem}.log"] = text
    return files
