"""The image of a target as one value."""

from __future__ import annotations

import json
from dataclasses import replace

from fakes import CHECKOUT, ON_IMAGE, PACKAGE, TARGET, UV, Folder, fitting_lock

from rlbox.errors import get_main_docs_url
from rlbox.image.plan import (
    ImagePlan,
    build_image_labels,
    compute_image_spec_checksum,
    map_git_http_names_to_context_paths,
    plan_image_without_tag,
)
from rlbox.target.lock import GitTree, HttpFile, LockedPackageGroup, Package, make_locked_patch
from rlbox.target.target import Target, load_target

TEMPLATES = [CHECKOUT / "templates"]
CHANNEL = '[[stack]]\nname = "torch"\npackages = ["torch==2.13.0"]\nsource = "torch-wheels"\nchannel = "cpu"\n'
PATCHED = TARGET + '[[patches]]\nfile = "one.diff"\ninto = "/opt/venv"\n'
FURTHER = (
    '[[git]]\nname = "verl"\nurl = "https://git.example/verl"\nref = "main"\ninto = "/opt/verl"\n'
    '[[http]]\nname = "tool"\nurl = "https://files.example/tool"\ninto = "/opt/bin/tool"\nexecutable = true\n'
)


def load(folder: Folder, text: str = TARGET) -> Target:
    folder.target("mine", text)
    return load_target(folder.project, "mine").target


def mine(folder: Folder, text: str = TARGET) -> ImagePlan:
    target = load(folder, text)
    return plan_image_without_tag(target, fitting_lock(target, ("rich",)), ("rich",), TEMPLATES)


def test_without_a_lock_there_are_no_requirements(folder: Folder) -> None:
    plan = plan_image_without_tag(load(folder), None, (), TEMPLATES)
    assert sorted(plan.context_files) == [
        "Dockerfile",
        *(f"files/opt/rlbox/libexec/{name}" for name in ("apply_patches.py", "entrypoint.sh", "init.sh")),
        "files/opt/rlbox/libexec/unified_diff.py",
        "fixes/opt/rlbox/share/fixes.json",
        *(f"scripts/{name}" for name in ("apply_patches.py", "install.sh", "unified_diff.py")),
    ]
    assert (plan.lock_fault, plan.lock_checksum, plan.rootfs_checksum, plan.layers) == ("missing", "", "", ("tools",))


def test_a_base_that_is_an_image_has_no_archive(folder: Folder) -> None:
    plan = mine(folder, ON_IMAGE)
    assert (plan.lock_fault, plan.rootfs_checksum) == (None, "")
    assert "rootfs.tar" not in plan.context_files["Dockerfile"]


def test_a_large_wheel_has_a_layer_and_a_stage_apart(folder: Folder) -> None:
    target = load(folder, TARGET + CHANNEL)
    torch = Package(
        name="torch", version="2.13.0+cpu", file="t.whl", sha256="e" * 64, size=200 << 20, source="torch-wheels/cpu"
    )
    groups = (
        LockedPackageGroup(name="tools", packages=(PACKAGE,)),
        LockedPackageGroup(name="torch", packages=(torch, UV)),
    )
    plan = plan_image_without_tag(target, replace(fitting_lock(target, ()), groups=groups), (), TEMPLATES)
    assert plan.layers == ("tools", "torch.torch", "torch")
    assert (
        plan.context_files["wheels/torch.large/torch.torch/requirements.txt"]
        == torch.format_requirement_line_with_hash()
    )
    assert plan.context_files["wheels/torch/torch/requirements.txt"] == UV.format_requirement_line_with_hash()
    text = plan.context_files["Dockerfile"]
    begin = "\n\n# torch: torch==2.13.0\n# large: torch==2.13.0+cpu\nFROM rlbox.tools AS torch.large\nRUN --mount="
    assert begin in text
    assert text.count("TORCH_WHEELS=https://download.pytorch.org/whl/cpu") == 1
    assert (
        """
COPY --link --from=rlbox.runtime /out/ /
COPY --link --from=rlbox.venv /out/ /
COPY --link --from=tools /out/tools/ /
COPY --link --from=torch.large /out/torch.torch/ /
COPY --link --from=torch /out/torch/ /
COPY --link --from=rlbox.fixes /out/ /
"""
        in text
    )


def test_patches_are_part_of_the_context(folder: Folder) -> None:
    target = load(folder, PATCHED)
    lock = replace(fitting_lock(target, ()), patches=(make_locked_patch("one.diff", "diff\n"),))
    plan = plan_image_without_tag(target, lock, (), TEMPLATES, {"one.diff": "diff\n"})
    assert plan.lock_fault is None
    [row] = json.loads(plan.context_files["patches/manifest.json"])["patches"]
    assert (row["name"], row["into"], row["diff"], row["skip"]) == ("one.diff", "/opt/venv", "diff\n", "")
    assert "\n# one.diff: changes /opt/venv\n" in plan.context_files["Dockerfile"]
    assert plan_image_without_tag(target, lock, (), TEMPLATES, {"one.diff": "other\n"}).lock_fault == (
        "stale: one.diff changed since"
    )
    assert "AS rlbox.patches" not in mine(folder).context_files["Dockerfile"]


def test_trees_and_files_are_layers(folder: Folder) -> None:
    target = load(folder, TARGET + FURTHER)
    lock = replace(
        fitting_lock(target, ()),
        git=(GitTree(name="verl", url="u", ref="main", commit="1", tree="2", sha256="3" * 64, size=4),),
        http=(HttpFile(name="tool", url="u", sha256="5" * 64, size=6),),
    )
    assert map_git_http_names_to_context_paths(lock) == {
        "verl": "git/verl-333333333333.tar",
        "tool": "http/tool-555555555555",
    }
    text = plan_image_without_tag(target, lock, (), TEMPLATES).context_files["Dockerfile"]
    assert (
        """
FROM rlbox.tools AS rlbox.parts
# https://git.example/verl at main
ADD git/verl-333333333333.tar "/out/verl/opt/verl/"
# https://files.example/tool
COPY --chmod=0755 http/tool-555555555555 "/out/tool/opt/bin/tool"
RUN sh /opt/tools/install.sh settle
"""
        in text
    )
    copies = ("rlbox.parts /out/verl/ /", "rlbox.parts /out/tool/ /", "rlbox.fixes /out/ /")
    assert "\n".join(f"COPY --link --from={copy}" for copy in copies) in text
    assert "ADD unlocked " in plan_image_without_tag(target, None, (), TEMPLATES).context_files["Dockerfile"]


def test_labels_name_no_machine_and_no_mirror(folder: Folder) -> None:
    target = load(folder, PATCHED)
    lock = fitting_lock(target, ())
    oci = "org.opencontainers.image"
    assert build_image_labels(target, lock) == {
        f"{oci}.created": "2025-01-01T00:00:00Z",
        f"{oci}.description": "Image of the rlbox target mine, built from a lock file",
        f"{oci}.documentation": get_main_docs_url("images"),
        f"{oci}.title": "smallest target",
        f"{oci}.version": lock.compute_json_sha256()[:12],
        "rlbox.fixes": "",
        "rlbox.lock": lock.compute_json_sha256(),
        "rlbox.patches": "",
        "rlbox.spec": compute_image_spec_checksum(target),
        "rlbox.target": "mine",
    }
    elsewhere = load(folder, 'sources = "cn"\n' + PATCHED)
    assert build_image_labels(elsewhere, lock) == build_image_labels(target, lock)
    assert build_image_labels(target, None)["rlbox.lock"] == ""
    based = build_image_labels(load(folder, ON_IMAGE), None)
    assert (based[f"{oci}.base.name"], based[f"{oci}.base.digest"][:8]) == ("registry.example/base", "sha256:0")


def test_the_ca_bundle_in_the_image(folder: Folder) -> None:
    plan = mine(folder, TARGET + "[build]\nbake_ca = true\n")
    assert plan.bake_ca
    assert "\n    SSL_CERT_FILE=/opt/rlbox/share/ca.crt \\\n" in plan.context_files["Dockerfile"]
    assert "ca.crt \\\n    PATH=" in plan.context_files["Dockerfile"]
    assert "share/ca.crt" not in mine(folder).context_files["Dockerfile"]


def test_templates_of_the_project_come_first(folder: Folder) -> None:
    folder.write("templates/base.j2", "FROM rlbox.os AS rlbox.tools\n")
    folder.target("mine")
    target = load_target(folder.project, "mine").target
    plan = plan_image_without_tag(target, None, (), folder.project.list_existing_template_dirs_except_packs())
    assert plan.rendered_files["Dockerfile.base"].endswith("\n\nFROM rlbox.os AS rlbox.tools\n")
    assert "\nFROM rlbox.os AS rlbox.tools\n\n# ---- the stack" in plan.rendered_files["images/mine/Dockerfile"]


def test_the_order_of_what_has_none_does_not_matter(folder: Folder) -> None:
    one = mine(folder, TARGET + '[env]\nB = "2"\nA = "1"\n')
    two = mine(folder, TARGET + '[env]\nA = "1"\nB = "2"\n')
    assert one == two
    assert one.rendered_files["images/mine/Dockerfile"].index('A="1"') < one.rendered_files[
        "images/mine/Dockerfile"
    ].index('B="2"')


def test_every_key_changes_the_checksum(folder: Folder) -> None:
    texts = [
        TARGET,
        TARGET.replace("smallest", "small"),
        TARGET + '[env]\nA = "1"\n',
        TARGET + "[run]\npids = 3\n",
        TARGET + "[build]\nepoch = 3\n",
        TARGET + "[build]\nown_layer_mib = 3\n",
        TARGET + '[python]\nbuild = ["wheel"]\n',
        TARGET + FURTHER,
        PATCHED,
    ]
    assert len({compute_image_spec_checksum(load(folder, text)) for text in texts}) == len(texts)
