"""How the engine stands, from what it says of itself."""

from __future__ import annotations

from rlbox.engine.setup import parse_engine_info

INFO = {
    "ServerVersion": "26.1.5",
    "Driver": "overlayfs",
    "DockerRootDir": "/var/lib/docker",
    "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
}


def test_one_that_is_ready() -> None:
    status = parse_engine_info("unix:///run/docker.sock", INFO, 80 * 10**9, ())
    assert status.is_running_and_set_up
    assert status.format() == (
        "engine 26.1.5 at unix:///run/docker.sock\n"
        "images in /var/lib/docker, 80.0 GB free: the containerd store (overlayfs)"
    )


def test_one_that_lacks_something() -> None:
    info = {**INFO, "DriverStatus": [["Backing Filesystem", "extfs"]], "Driver": "overlay2"}
    status = parse_engine_info("ssh://far", info, None, ("install mmdebstrap",))
    assert not status.is_running_and_set_up
    assert status.format() == (
        "engine 26.1.5 at ssh://far\n"
        "images in /var/lib/docker: docker's own store, which keeps no manifests (overlay2)\n"
        "to do: install mmdebstrap\n"
        "next: rlbox engine up"
    )
