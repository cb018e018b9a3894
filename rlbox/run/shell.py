"""What `rlbox shell` does."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rlbox.app import App
from rlbox.image.plans import image_plan

if TYPE_CHECKING:
    from rlbox.engine.container import ContainerDefaults, ContainerPlan
    from rlbox.image.plan import ImagePlan


def open_shell(app: App, name: str, command: tuple[str, ...], data: str | None, gpus: str = "") -> int:
    """Run `command`, or a shell, in a container of the target's image and return its exit code.

    Parameters
    ----------
    data, gpus
        `--data` and `--gpus`, if they were given.
    """
    from rlbox.engine.address import engine_is_here
    from rlbox.engine.container import OWNER_LABEL, TARGET_LABEL, client_words, plan_container
    from rlbox.engine.data_disk import check_devices, check_disk, data_folder
    from rlbox.engine.gpu_access import GPUS_VARIABLE, NO_GPUS
    from rlbox.system.network_settings import find_ca_bundle

    image = image_plan(app.project, name)
    folder = data_folder(image.container.host, data)
    check_disk(app, folder, image.container, 0.0)
    with app.checking("devices"):
        check_devices(app, image.container)
    access = NO_GPUS
    if gpus or image.container.gpus or GPUS_VARIABLE in os.environ:
        from rlbox.doctor.gpu_choice import choose_container_gpus

        access = choose_container_gpus(app, image, gpus)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    plan = plan_container(
        image.tag,
        _limits(app, image),
        name=f"rlbox-shell-{name}-{os.getpid()}",
        argv=command or ("bash",),
        env={},
        labels={TARGET_LABEL: name, OWNER_LABEL: str(os.getuid())},
        data=str(folder),
        caller=f"{os.getuid()}:{os.getgid()}",
        ca_bundle=find_ca_bundle() if engine_is_here() else "",
        gpus=access,
    )
    words = ("docker", *client_words(plan, interactive=terminal or not sys.stdin.isatty(), terminal=terminal))
    _require_image(app, image)
    if app.dry_run:
        return _show(app, name, plan, words)
    return _run(plan, words)


def _require_image(app: App, image: ImagePlan) -> None:
    """Refuse what the docker client would refuse in its own words, or could not: there is no image, or no client."""
    import shutil

    from rlbox.engine.address import no_client
    from rlbox.image.check import own_image

    with app.checking("docker client"):
        if shutil.which("docker") is None:
            raise no_client()
    with app.checking("image"):
        own_image(app, image)


def _limits(app: App, image: ImagePlan) -> ContainerDefaults:
    """Return the limits of the target with a network that the engine has; what opens the shell is said."""
    from rlbox.engine.connection import engine

    limits = image.container
    with app.checking("network"):
        limits = engine().reachable(limits)
    if limits.network != image.container.network:
        from rlbox.run.closed import no_bridge_message

        app.say(no_bridge_message("shell", limits.network))
    return limits


def _show(app: App, name: str, plan: ContainerPlan, words: tuple[str, ...]) -> int:
    """Print the lines that do the same by hand, and whether it would be done."""
    import shlex

    from rlbox.engine.container import network_words

    before, after = network_words(plan)
    silent = [f"{shlex.join(part)} >/dev/null" if part else "" for part in (before, after)]
    text = "\n".join(line for line in (silent[0], shlex.join(words), silent[1]) if line)
    data = {"target": name, "command": words, "before": before, "after": after}
    return app.planned(data, text, f"start a container of {plan.image}")


def _run(plan: ContainerPlan, words: tuple[str, ...]) -> int:
    """Run the docker client in the foreground, with the container's network, and return the container's exit code."""
    from rlbox.engine.address import engine_address
    from rlbox.engine.connection import engine
    from rlbox.system.command import run_in_foreground
    from rlbox.values import Command

    with engine().network(plan):
        code = run_in_foreground(Command(argv=words, env={"DOCKER_HOST": engine_address()}))
    return code if code >= 0 else 128 - code
