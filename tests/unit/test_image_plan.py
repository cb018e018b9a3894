"""The image of a target as one value."""

from __future__ import annotations

import json

from fakes import CHECKOUT, LIMITS, TARGET, Folder, image_plan

from rlbox.plan.image import ImagePlan, load_image_plan, plan_image, spec_checksum
from rlbox.plan.sources import TorchGroup
from rlbox.spec.load import load_target
from rlbox.spec.lock import Lock, LockedGroup, Package, lock_checksum

TEMPLATES = [CHECKOUT / "templates"]
SIX = Package(name="six", version="1.16.0", sha256=("a" * 64,))
UV = Package(name="uv", version="0.9.0", sha256=("b" * 64,))
RICH = Package(name="rich", version="15.0.0", sha256=("c" * 64,))


def mine(folder: Folder, text: str = TARGET) -> ImagePlan:
    folder.target("mine", text)
    target = load_target(folder.project, "mine").target
    lock = Lock(
        target="mine",
        spec=lock_checksum(target, ("rich",)),
        runtime=LockedGroup(name="runtime", packages=(RICH, UV)),
        groups=(LockedGroup(name="tools", packages=(SIX,)),),
    )
    return plan_image(target, lock, ("rich",), TEMPLATES, None)


def test_the_whole_plan(folder: Folder) -> None:
    folder.write("templates/Dockerfile.j2", "FROM {{ target.name }}\n")
    folder.write("templates/base.j2", "base\n")
    folder.write("templates/scripts/install.sh", "install\n")
    folder.write("templates/scripts/entrypoint.sh", "start\n")
    folder.target("mine", TARGET + '[env]\nA = "1"\n[run]\nmemory_gib = 2.5\n')
    target = load_target(folder.project, "mine").target
    lock = Lock(
        target="mine",
        spec=lock_checksum(target, ("rich",)),
        runtime=LockedGroup(name="runtime", packages=(RICH, UV)),
        groups=(LockedGroup(name="tools", packages=(SIX,)),),
    )
    assert plan_image(target, lock, ("rich",), [folder.path / "templates"], None) == image_plan(
        rendered={
            "images/mine/Dockerfile": "FROM mine\n",
            "Dockerfile.base": "# Rendered by `rlbox render`: the first stage of every images/*/Dockerfile.\n\nbase\n",
        },
        context={
            "Dockerfile": "FROM mine\n",
            "scripts/entrypoint.sh": "start\n",
            "scripts/install.sh": "install\n",
            "requirements/tools.txt": f"six==1.16.0 \\\n    --hash=sha256:{'a' * 64}\n",
            "requirements/runtime.txt": (
                f"rich==15.0.0 \\\n    --hash=sha256:{'c' * 64}\nuv==0.9.0 \\\n    --hash=sha256:{'b' * 64}\n"
            ),
            "requirements/uv.txt": f"uv==0.9.0 \\\n    --hash=sha256:{'b' * 64}\n",
        },
        packages=(),
        epoch=1735689600,
        env={"A": "1"},
        container=type(LIMITS)(**{**LIMITS.__dict__, "memory_gib": 2.5, "host": "~/disk", "create": True}),
    )


def test_a_plan_survives_its_file(folder: Folder) -> None:
    text = (
        TARGET + '[[stack]]\nname = "torch"\npackages = ["torch==2.13.0"]\nsource = "torch-wheels"\nchannel = "cpu"\n'
    )
    plan = mine(folder, text)
    assert plan.torch_groups == (TorchGroup(packages=("torch==2.13.0",), channel="cpu"),)
    assert load_image_plan(json.loads(json.dumps(plan.as_json()))) == plan


def test_without_a_lock_there_are_no_requirements(folder: Folder) -> None:
    folder.target("mine")
    plan = plan_image(load_target(folder.project, "mine").target, None, (), TEMPLATES, None)
    assert sorted(plan.context) == ["Dockerfile", "scripts/entrypoint.sh", "scripts/install.sh"]


def test_templates_of_the_project_come_first(folder: Folder) -> None:
    folder.write("templates/base.j2", "FROM os AS base\n")
    folder.target("mine")
    target = load_target(folder.project, "mine").target
    plan = plan_image(target, None, (), folder.project.template_folders(), None)
    assert plan.rendered["Dockerfile.base"].endswith("\n\nFROM os AS base\n")
    assert "\nFROM os AS base\n\n# ---- the stack" in plan.rendered["images/mine/Dockerfile"]


def test_the_order_of_what_has_none_does_not_matter(folder: Folder) -> None:
    one = mine(folder, TARGET + '[env]\nB = "2"\nA = "1"\n')
    two = mine(folder, TARGET + '[env]\nA = "1"\nB = "2"\n')
    assert one == two
    assert one.rendered["images/mine/Dockerfile"].index('A="1"') < one.rendered["images/mine/Dockerfile"].index('B="2"')


def test_every_key_changes_the_checksum(folder: Folder) -> None:
    texts = [
        TARGET,
        TARGET.replace("smallest", "small"),
        TARGET + '[env]\nA = "1"\n',
        TARGET + "[run]\npids = 3\n",
        TARGET + "[build]\nepoch = 3\n",
    ]
    sums = set()
    for text in texts:
        folder.target("mine", text)
        sums.add(spec_checksum(load_target(folder.project, "mine").target))
    assert len(sums) == len(texts)
