"""Lay slime's own patch over Megatron-LM, in a copy, where it is missing: the image's tree has it.

slime is written against a Megatron with `docker/patch/latest/megatron.patch`. The copy is below `--out`, which comes
first on PYTHONPATH; a tree that has the patch already is used as it is. Without Transformer Engine and Apex Megatron
takes AdamW of torch and cannot load what it saved of its state; the copy gets `torch_adam.patch` then. SGLang has a
patch of slime's, too, which fits the nightly build that slime's image was made from and not the release: whether it is
there is told, nothing more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

PATCHES = Path("docker/patch/latest")
ADAM = Path(__file__).with_name("torch_adam.patch")


class SourcesError(Exception):
    """The trees and the patch do not belong together. The text says what, where and what next."""


def fits(patch: Path, tree: Path, strip: int, *, backwards: bool = False) -> bool:
    """Whether a patch applies to a tree (`backwards`: has been applied), all of it."""
    return _git_apply(patch, tree, strip, "--check", *(["--reverse"] if backwards else [])).returncode == 0


def _git_apply(patch: Path, tree: Path, strip: int, *words: str) -> subprocess.CompletedProcess[str]:
    argv = ("git", "apply", f"-p{strip}", *words, str(patch.resolve()))
    # a data disk that lies in somebody's repository would make git leave out what is outside of it
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
    try:
        return subprocess.run(argv, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SourcesError("git is not there: add it to base.packages of the target") from error


def patch_megatron(megatron: Path, patch: Path, out: Path) -> str:
    """Make `out`, with a patched copy of Megatron's package unless the tree has the patch; return what was done.

    Raises
    ------
    SourcesError
        The patch fits neither way: Megatron is not at the commit that slime names.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    if not patch.is_file():
        raise SourcesError(f"no {patch}: --set source= must name slime's whole tree")
    if fits(patch, megatron, 1, backwards=True):
        return f"{megatron} has slime's patch"
    if not fits(patch, megatron, 1):
        raise SourcesError(
            f"{patch} does not fit {megatron}: take the commit that slime's docker/Dockerfile names (MEGATRON_COMMIT)"
        )
    _lay(patch, megatron, out)
    return f"slime's patch is in {out}/megatron"


def _lay(patch: Path, megatron: Path, out: Path) -> None:
    if not (out / "megatron").is_dir():
        shutil.copytree(megatron / "megatron", out / "megatron", ignore=shutil.ignore_patterns("__pycache__"))
    done = _git_apply(patch, out, 1)
    if done.returncode:
        raise SourcesError(f"{patch} could not be applied in {out}: {done.stderr.strip()}")


def mend_adam(megatron: Path, out: Path, patch: Path = ADAM) -> str:
    """Lay the patch of torch's AdamW over `out`, with a copy of Megatron where it has none; return what was done."""
    if any(find_spec(name) for name in ("transformer_engine", "apex")):
        return "Adam is Transformer Engine's or Apex's"
    tree = out if (out / "megatron").is_dir() else megatron
    if fits(patch, tree, 1, backwards=True):
        return f"{tree} loads what torch's AdamW saved"
    if not fits(patch, tree, 1):
        return f"{patch.name} does not fit {tree}: no resume with the optimizer's state"
    _lay(patch, megatron, out)
    return f"{out}/megatron loads what torch's AdamW saved"


def tell_sglang(patch: Path) -> str:
    """Return whether the installed SGLang has slime's patch."""
    spec = find_spec("sglang")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        return "SGLang is not installed"
    if fits(patch, Path(folders[0]).parent, 2, backwards=True):
        return "SGLang has slime's patch"
    return "SGLang is the release, without slime's patch"


def main() -> None:
    """Patch what must be patched, and say so."""
    parser = argparse.ArgumentParser(prog="holdem.sources", description=__doc__)
    parser.add_argument("--slime", type=Path, required=True, help="slime's tree")
    parser.add_argument("--megatron", type=Path, required=True, help="Megatron-LM's tree")
    parser.add_argument("--out", type=Path, required=True, help="folder that gets the patched copy")
    args = parser.parse_args()
    folder = args.slime / PATCHES
    try:
        print(f"[holdem][sources] {patch_megatron(args.megatron, folder / 'megatron.patch', args.out)}")
        print(f"[holdem][sources] {mend_adam(args.megatron, args.out)}")
        print(f"[holdem][sources] {tell_sglang(folder / 'sglang.patch')}")
    except SourcesError as error:
        print(f"holdem.sources: error: {error}", file=sys.stderr)
        sys.exit(1)
    print("[holdem][sources] passed", flush=True)


if __name__ == "__main__":
    main()
