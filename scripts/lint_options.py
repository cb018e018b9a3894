"""Write rlbox/lint/options.json.xz: options, keys and variables that releases know, out of their unpacked wheels.

    python scripts/lint_options.py WHEELS    # a directory with a folder NAME-VERSION for each wheel

The releases are those that `images/` pins, and of verl two before, whose keys scripts still have. What vastai requires
must be installed, since its parser is made when it is run.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import lzma
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

OUT = Path(__file__).parents[1] / "rlbox/lint/options.json.xz"
RELEASES = {
    "ray": ("2.55.0", "2.60.0"),
    "vllm": ("0.24.0", "0.32.0"),
    "sglang": ("0.5.15.post1",),
    "openrlhf": ("0.10.4",),
    "verl": ("0.7.0", "0.8.0", "0.9.1"),
    "vastai": ("1.9.1",),
}
Names = dict[str, set[str]]
"""Program (`vllm serve`, `verl`) or prefix of variables (`VLLM_`) to the names that a release knows."""


def flags_in(node: ast.AST) -> set[str]:
    """Return the options that calls of `add_argument` and `click.option` below a node declare."""
    flags = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(("add_argument", "option")):
            texts = [part.value for part in ast.walk(call) if isinstance(part, ast.Constant)]
            for part in ast.walk(call):
                if isinstance(part, ast.JoinedStr):  # f"--{prefix}.adam.lr"
                    pattern = "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in part.values)
                    texts += [pattern.replace("{}", prefix) for prefix in ("actor", "critic")]
            flags |= {
                flag for text in texts for flag in str(text).split("/") if re.fullmatch(r"--?[a-zA-Z][\w.-]*", flag)
            }
    return flags


def fields_in(tree: ast.Module, *classes: str) -> set[str]:
    """Return the fields of dataclasses as options; a field may name further ones in `aliases` or `cli_name`."""
    flags = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    texts = {part.value for part in ast.walk(field.annotation) if isinstance(part, ast.Constant)}
                    flags |= {text for text in texts if re.fullmatch(r"--?[a-z][\w-]*", str(text))}
                    flags.add("--" + ast.unparse(field.target).replace("_", "-"))
    return flags


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def read_ray(wheel: Path) -> Names:
    names: Names = {}
    for path, prefix in (
        (wheel / "ray/scripts/scripts.py", "ray"),
        (wheel / "ray/dashboard/modules/job/cli.py", "ray job"),
    ):
        for node in parse(path).body:
            if isinstance(node, ast.FunctionDef) and any("command" in ast.unparse(one) for one in node.decorator_list):
                flags = set().union(*(flags_in(decorator) for decorator in node.decorator_list))
                common = {"--log-style", "--log-color", "--verbose", "-v", "--headers", "--verify", "--address"}
                names[f"{prefix} {node.name.replace('_', '-')}"] = flags | common
    return {
        program: flags for program, flags in names.items() if program in ("ray start", "ray stop", "ray job submit")
    }


def read_vllm(wheel: Path) -> Names:
    paths = [wheel / "vllm/engine/arg_utils.py", *wheel.glob("vllm/entrypoints/**/cli_args.py")]
    flags = set()
    for path in paths:
        flags |= flags_in(parse(path)) | fields_in(parse(path), "BaseFrontendArgs", "FrontendArgs")
    return {"vllm serve": flags, "VLLM_": words_in(wheel / "vllm", "VLLM")}


def read_sglang(wheel: Path) -> Names:
    flags = set()
    for path in wheel.glob("sglang/srt/**/*arg*.py"):
        flags |= flags_in(parse(path)) | fields_in(parse(path), "ServerArgs")
    return {"python -m sglang.launch_server": flags, "SGLANG_": words_in(wheel / "sglang", "SGLANG")}


def read_openrlhf(wheel: Path) -> Names:
    paths = (wheel / "openrlhf/cli").glob("*.py")
    return {f"python -m openrlhf.cli.{path.stem}": flags for path in paths if (flags := flags_in(parse(path)))}


def read_verl(wheel: Path) -> Names:
    keys: set[str] = set()
    for path in wheel.glob("verl/trainer/config/_generated_*.yaml"):
        keys |= set(paths_of(yaml.safe_load(path.read_text("utf-8"))))
    engines = {f"{role}.engine." for role in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")}
    return {"python -m verl.trainer.main_ppo": keys | engines}  # an engine of one's own brings its keys


def paths_of(value: object, path: str = "") -> Iterator[str]:
    """Yield the dotted keys of a configuration's values; one that is open to further keys ends with a dot."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        if isinstance(inner, dict) and inner:
            yield from paths_of(inner, f"{path}{key}.")
        else:
            yield f"{path}{key}" if inner not in ({}, None) else f"{path}{key}."


def read_vastai(wheel: Path) -> Names:
    """Return each command's options; the parser is filled as `vastai --help` fills it."""
    sys.path.insert(0, str(wheel))
    from vastai.cli import main

    sys.argv = ["vastai", "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main.main()
    common = {flag for action in main.parser.parser._actions for flag in action.option_strings}
    return {
        f"vastai {parser.prog.split(maxsplit=1)[1]}": common.union(
            *(action.option_strings for action in parser._actions)
        )
        for parser in main.parser.subparser_objs
    }


def words_in(folder: Path, prefix: str) -> set[str]:
    """Return all words of a package's Python that begin as its variables do."""
    texts = (path.read_text("utf-8", "replace") for path in folder.rglob("*.py"))
    return {word for text in texts for word in re.findall(rf"\b{prefix}_[A-Z0-9_]+\b", text)}


def main() -> None:
    wheels = Path(sys.argv[1])
    packages: dict[str, dict[str, dict[str, list[str]]]] = {}
    for package, releases in RELEASES.items():
        known = {release: globals()[f"read_{package}"](wheels / f"{package}-{release}") for release in releases}
        packages[package] = {
            program: {release: sorted(names.get(program, ())) for release, names in known.items()}
            for program in sorted(set().union(*known.values()))
        }
    OUT.write_bytes(lzma.compress(json.dumps(packages).encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
