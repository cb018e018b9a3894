"""Which packages share a layer of the image."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import PACKAGE, Folder, fitting_lock

from rlbox.errors import SpecError
from rlbox.image.plan import (
    MAX_LAYERS,
    PythonLayer,
    group_adjacent_layers_by_stage,
    layer_dir_relative_to_wheels,
    plan_python_layers,
)
from rlbox.image.show import list_image_layers_bottom_up
from rlbox.target.lock import Lock, LockedPackageGroup, Package
from rlbox.target.target import Target, load_target

MIB = 1 << 20


def target(folder: Folder, *groups: str, own_layer_mib: int = 20) -> Target:
    stack = "".join(f'[[stack]]\nname = "{name}"\npackages = ["{name}-root"]\n' for name in groups)
    text = f'title = "t"\n[base]\nbootstrap = "debian:bookworm"\n[build]\nown_layer_mib = {own_layer_mib}\n{stack}'
    folder.target("mine", text)
    return load_target(folder.project, "mine").target


def package(name: str, size: int = 1, source: str = "python") -> Package:
    return replace(PACKAGE, name=name, sha256=name.ljust(64, "0"), size=size, source=source)


def lock(mine: Target, **groups: tuple[Package, ...]) -> Lock:
    found = tuple(LockedPackageGroup(name=name, packages=packages) for name, packages in groups.items())
    return replace(fitting_lock(mine, ()), groups=found)


def names(layers: tuple[PythonLayer, ...]) -> list[tuple[str, list[str]]]:
    return [(layer.name, [package.name for package in layer.packages]) for layer in layers]


def test_a_large_wheel_is_a_layer_of_its_own(folder: Folder) -> None:
    mine = target(folder, "torch", "tools", own_layer_mib=3)
    large, small = package("Big-Wheel", 3 * MIB), package("small", 3 * MIB - 1)
    assert plan_python_layers(mine, lock(mine, torch=(large, small), tools=(package("six"),))) == (
        PythonLayer(name="torch.big-wheel", group="torch", packages=(large,)),
        PythonLayer(name="torch", group="torch", packages=(small,)),
        PythonLayer(name="tools", group="tools", packages=(package("six"),)),
    )


def test_a_group_of_large_wheels_has_no_layer_besides(folder: Folder) -> None:
    mine = target(folder, "torch")
    found = plan_python_layers(mine, lock(mine, torch=(package("a", 20 * MIB), package("b", 21 * MIB))))
    assert names(found) == [("torch.a", ["a"]), ("torch.b", ["b"])]


def test_groups_keep_the_order_of_the_spec(folder: Folder) -> None:
    mine = target(folder, "z", "a", "m")
    found = plan_python_layers(
        mine, lock(mine, a=(package("p"),), m=(package("q", 30 * MIB), package("r")), z=(package("s"),))
    )
    assert names(found) == [("z", ["s"]), ("a", ["p"]), ("m.q", ["q"]), ("m", ["r"])]


def test_a_group_without_packages_is_a_layer(folder: Folder) -> None:
    mine = target(folder, "one", "two")
    for groups in ({"two": ()}, {}):
        layers = plan_python_layers(mine, lock(mine, one=(package("six"),), **groups))
        assert names(layers) == [("one", ["six"]), ("two", [])]


def test_too_many_large_wheels(folder: Folder) -> None:
    """Engines refuse more layers: only the largest wheels stand alone, the first by name among equals."""
    mine = target(folder, "one", "two")
    many = tuple(package(f"p{number:03}", (20 + number // 2) * MIB) for number in range(120))
    found = plan_python_layers(mine, lock(mine, one=many, two=(package("six"),)))
    assert len(found) == MAX_LAYERS
    alone = [layer.packages[0].name for layer in found if layer.name.startswith("one.")]
    assert len(alone) == MAX_LAYERS - 2
    assert alone == [f"p{number:03}" for number in range(32, 120)]
    shared = next(layer for layer in found if layer.name == "one")
    assert [p.name for p in shared.packages] == [f"p{number:03}" for number in range(32)]


def test_too_many_groups(folder: Folder) -> None:
    groups = [f"g{number}" for number in range(MAX_LAYERS + 5)]
    mine = target(folder, *groups)
    found = plan_python_layers(
        mine, lock(mine, **{name: (package(name, 30 * MIB), package(f"{name}-s")) for name in groups})
    )
    assert [layer.name for layer in found] == groups


def test_two_channels_in_one_layer(folder: Folder) -> None:
    mine = target(folder, "torch")
    packages = (package("torch", 1, "torch-wheels/cu128"), package("vision", 1, "torch-wheels/cpu"))
    with pytest.raises(SpecError) as caught:
        group_adjacent_layers_by_stage(plan_python_layers(mine, lock(mine, torch=packages)))
    assert str(caught.value) == "stack.torch: packages of two channels of the torch wheel index: cpu, cu128"


def test_large_wheels_have_a_stage_apart(folder: Folder) -> None:
    mine = target(folder, "torch", "tools")
    torch = package("torch", 200 * MIB, "torch-wheels/cu128")
    packages = (torch, package("cublas", 90 * MIB), package("six"))
    layers = plan_python_layers(mine, lock(mine, torch=packages, tools=(package("rich"),)))
    stages = group_adjacent_layers_by_stage(layers)
    assert [(stage.name, [layer.name for layer in stage.layers]) for stage in stages] == [
        ("torch.large", ["torch.torch", "torch.cublas"]),
        ("torch", ["torch"]),
        ("tools", ["tools"]),
    ]
    assert [(stage.has_large_wheels, stage.torch_channel) for stage in stages] == [
        (True, "cu128"),
        (False, ""),
        (False, ""),
    ]
    assert [layer_dir_relative_to_wheels(layer.name) for layer in layers[:3]] == [
        "torch.large/torch.torch", "torch.large/torch.cublas", "torch/torch",
    ]  # fmt: skip


def test_two_channels_in_one_stage(folder: Folder) -> None:
    mine = target(folder, "torch")
    packages = (package("torch", 30 * MIB, "torch-wheels/cu128"), package("vision", 30 * MIB, "torch-wheels/cpu"))
    layers = plan_python_layers(mine, lock(mine, torch=packages))
    with pytest.raises(SpecError, match=r"stack.torch: packages of two channels"):
        group_adjacent_layers_by_stage(layers)


def test_parts_of_an_image_by_the_commands_of_its_history() -> None:
    commands = ("ADD rootfs.tar /", "/out/", "/out/", "/out/torch.large/", "/out/", "/out/", "COPY lock/1/ /", "/out/")
    history = [
        {"CreatedBy": f"COPY {command} / # buildkit" if command.startswith("/") else command, "Size": 1}
        for command in commands
    ]
    history.insert(3, {"CreatedBy": "ENV A=1", "Size": 0})
    layers = list_image_layers_bottom_up(history[::-1])
    assert [layer.part for layer in layers] == [
        "os", "runtime", "environment", "torch.large", "fixes", "rlbox", "lock", "other",
    ]  # fmt: skip
