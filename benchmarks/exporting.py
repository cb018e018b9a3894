"""Goals 19 and 20: a fresh layer of 400 MB on its way from BuildKit into a registry."""

from __future__ import annotations

import itertools
import time
from functools import partial

from benchmarks.pairs import Case, Sample, time_process
from benchmarks.place import Place, run
from benchmarks.registry import Registry
from benchmarks.stack import Stack

SITE = "/opt/venv/lib/python3.11/site-packages"
DOCKERFILE = """\
FROM {image} AS stack
FROM {base}
ARG ROUND
RUN --mount=from=stack,source={site},target=/in : {mark} && mkdir /opt/layer \\
    && cp -a /in/numpy* /in/scipy* /in/pandas* /in/pyarrow* /opt/layer/ && echo $ROUND >/opt/layer/round
"""


class Exports:
    """The two ways of one layer, and the sizes that it had in the registry."""

    def __init__(self, place: Place) -> None:
        self.place, self.stack = place, place.kept.get(Stack)
        self.sizes: list[tuple[int, int]] = []
        self._rounds = itertools.count()
        text = {"image": self.stack.image, "base": self.stack.base_image(), "site": SITE, "mark": self.stack.mark}
        (place.folder / "layer").mkdir()
        (place.folder / "layer/Dockerfile").write_text(DOCKERFILE.format(**text))
        command = self.stack.place.output("build", self.stack.name, "--rebuild", "--dry-run")["command"]
        self.ours = [word for word in command if word.startswith(("--output=", "--provenance="))]
        self.default = ["--provenance=false"]

    def measure(self, place: Place) -> Sample:
        """Return the seconds of build and push, with rlbox's output options and with docker's own."""
        registry, number = self.stack.registry, f"{self.stack.mark}-{next(self._rounds)}"
        ours = partial(self._export, registry, self.ours, "zstd", number)
        sample = place.compare(ours, partial(self._export, registry, self.default, "gzip", number))
        self.sizes.append((self._size("zstd"), self._size("gzip")))
        return sample

    def _export(self, registry: Registry, options: list[str], name: str, number: str) -> float:
        image = f"{registry.host}/{name}:1"
        argument = f"ROUND={number}-{name}-{time.monotonic_ns()}"
        argv = ("docker", "buildx", "build", "--progress=plain", *options, f"--tag={image}", "--build-arg", argument)
        build = self.place.case((*argv, str(self.place.folder / "layer")), name=f"build {name}")
        push: Case = self.place.case(("docker", "push", "--quiet", image), name=f"push {name}")
        try:
            return time_process(build) + time_process(push)
        finally:
            run(("docker", "rmi", image))

    def _size(self, name: str) -> int:
        return list(self.stack.registry.layers(name).values())[-1]


def layer_time(place: Place) -> Sample:
    """Wall time until the registry has the layer."""
    return place.kept.get(Exports).measure(place)


def layer_size(place: Place) -> Sample:
    """Bytes of the layer in the registry."""
    exports = place.kept.get(Exports)
    if not exports.sizes:
        exports.measure(place)
    ours, anchor = exports.sizes[0]
    return Sample(ours=(float(ours),), anchor=(float(anchor),), unit="B")
