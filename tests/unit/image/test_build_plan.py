"""The build command, and what BuildKit says while it works."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import CASES

from rlbox.image.buildkit import BuildLogParser, BuildRequest, BuildStep, plan_build_command
from rlbox.system.network_settings import NetworkSettings
from rlbox.values import Command

REQUEST = BuildRequest(
    context_dir=Path("/c"),
    tag="rlbox/mine:tests",
    labels={"rlbox.build": "d1g"},
    network="host",
    epoch=7,
    step_env={},
    network_settings=NetworkSettings(),
)


def test_buildx() -> None:
    request = replace(REQUEST, network_settings=NetworkSettings(ca_bundle="/etc/ca.crt"))
    assert plan_build_command(request, "/p/docker-buildx", "/s/sources.env", "/s/metadata.json") == Command(
        argv=(
            "/p/docker-buildx", "build",
            "--output=type=image,compression=zstd,compression-level=3,oci-mediatypes=true",
            "--provenance=false", "--progress=plain", "--network=host", "--tag=rlbox/mine:tests",
            "--label=rlbox.build=d1g", "--build-arg=SOURCE_DATE_EPOCH=7", "--metadata-file", "/s/metadata.json",
            "--secret", "id=sources,src=/s/sources.env", "--secret", "id=ca,src=/etc/ca.crt", "/c",
        ),
        env={},
    )  # fmt: skip


def test_without_network_and_cache() -> None:
    proxies = {"https_proxy": "http://p:1", "NO_PROXY": "localhost"}
    request = replace(REQUEST, network="none", use_cache=False, network_settings=NetworkSettings(proxy_env=proxies))
    argv = plan_build_command(request, "/p/docker-buildx", "").argv
    assert {"--network=none", "--build-arg=NO_PROXY", "--build-arg=https_proxy", "--no-cache"} < set(argv)
    assert "--secret" not in argv


def read(name: str) -> tuple[BuildLogParser, list[BuildStep]]:
    log = BuildLogParser()
    lines = (CASES / "image/build_log" / f"{name}.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    return log, [step for line in lines if (step := log.parse_step_change(line))]


FROM = "FROM docker.io/library/h4:base@sha256:cc9aba8401ad00242f56ce019ab0283d542d7c8289e7053e0547feb6ac4e1492"


def test_steps_that_run_at_once_take_turns() -> None:
    """BuildKit breaks off with `#5 ...`, names the other step again, and comes back: nothing begins twice."""
    log, told = read("interleaved-docker-26")
    assert [(step.number, step.state) for step in told] == [
        (number, state) for number in (1, 2, 3) for state in ("running", "done")
    ] + [
        (4, "running"),
        (4, "done"),
        (5, "running"),
        (5, "done"),
        (6, "running"),
        (6, "done"),
        (7, "running"),
        (7, "done"),
    ]
    assert log.steps[4].seconds == 0.1
    assert log.steps[5].name == "[internal] load build context"
    assert log.steps[7] == BuildStep(number=7, name="exporting to image", state="done", seconds=35.3)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        "------",
        " > [stage-0 3/4] RUN x:",
        '#0 building with "default" instance using docker driver',
        "#5 0.123 DONE 1.2s",
        "#5 0.123 ERROR: of the program, not of the step",
        "#5 ...",
        "#5 sha256:3acfa4e58d8a66b739127ea69bb97f3074c0a75f36075bcaf0f86aae5854e7d6",
        "#5 [stage-0 2/4] RUN --mount=type=cache,target=/c echo one",
        "ERROR: failed to solve: process",
    ],
)
def test_lines_that_say_nothing_of_a_step(line: str) -> None:
    log = BuildLogParser()
    log.parse_step_change("#5 [stage-0 2/4] RUN --mount=type=cache,target=/c --network=none echo one\n")
    assert log.parse_step_change(line) is None
    assert log.steps == {5: BuildStep(number=5, name="[stage-0 2/4] RUN echo one")}
