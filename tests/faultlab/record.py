"""`python tests/faultlab/record.py`: carry out recipes, one at a time, and keep what they printed with its label.

    python tests/faultlab/record.py [NAME...] [--again] [--on ENV] [--try] [--list] [--relabel]

Without names every recipe that has no log yet for one of its environments. `--try` prints instead of keeping.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]  # also tests/

from faultrecipe import LAB, Recipe, recipes  # noqa: E402
from labbox import Ran, make_base, make_environment, run_recipe, state_folder  # noqa: E402
from packed import read_packed, write_packed  # noqa: E402

LOGS = LAB / "logs.tar.xz"
MOST_BYTES = 400_000
"""A recipe that prints more is not bounded."""
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")
_HOSTS = ("py" + "pi.org", "files.python" + "hosted.org", "deb.debian" + ".org")
_BUILDER = "/ho" + "me/runner/wo" + "rk/"
"""Where wheels were built: a name that means nothing."""
_PRIVATE = re.compile(r"/wo" + r"rk/(?!shop)|/tmp/(?:diaglab|faultlab-)|/ro" + r"ot/\.(?!cargo/)")


class Missed(Exception):
    """A run did not show what its recipe promises."""


def label_of(recipe: Recipe, ran: Ran, logs: dict[str, str]) -> dict[str, Any]:
    """Return what is kept of a run beside its logs.

    Raises
    ------
    Missed
        The root is not in the log, or the run ended otherwise than its recipe says.
    """
    if recipe.exit is not None and ran.code != recipe.exit:
        raise Missed(f"it ended with {ran.code}, not {recipe.exit}")
    if not recipe.fatal:
        return {"exit": ran.code, "versions": ran.versions, "line": 0}
    file = "" if set(logs) == {""} else recipe.file
    if file not in logs:
        raise Missed(f"there is no log {file!r} among {sorted(logs)}")
    label = {"exit": ran.code, "versions": ran.versions, "line": _line_of(recipe, logs[file])}
    return {**label, "file": file} if file else label


def _line_of(recipe: Recipe, log: str) -> int:
    left = recipe.nth
    for number, line in enumerate(log.split("\n"), 1):
        bare = _CODES.sub("", line).strip()
        if re.search(recipe.root, bare) and not re.match(r"(?:\[rank\d+\]:)?\s*raise ", bare):
            left -= 1
            if left == 0:
                return number
    raise Missed(f"no line {recipe.root!r}")


def scrubbed(text: str) -> str:
    """Return a log without the names of registries; refuse one with paths of this machine."""
    for host in _HOSTS:
        text = text.replace(host, "REGISTRY")
    text = text.replace(_BUILDER, "/build/")
    if found := _PRIVATE.search(text):
        raise Missed(f"a path of this machine: {text[max(0, found.start() - 60) : found.end() + 60]!r}")
    if len(text) > MOST_BYTES:
        raise Missed(f"{len(text)} bytes are too many")
    return text


def keep(recipe: Recipe, env: str, ran: Ran) -> dict[str, Any]:
    """Write the logs of a run and its label."""
    forms = {f"{env}-{form}": logs for form, logs in ran.forms.items()} or {env: ran.logs}
    labels = {form: label_of(recipe, ran, logs) for form, logs in forms.items()}
    old = (*(f"{recipe.name}/{form}.log" for form in forms), *(f"{recipe.name}/{form}/" for form in forms))
    files = {path: content for path, content in read_packed(LOGS).items() if not path.startswith(old)}
    for form, logs in forms.items():
        several = set(logs) != {""}
        for name, text in logs.items():
            path = f"{form}/{name or 'launch.log'}" if several else f"{form}.log"
            files[f"{recipe.name}/{path}"] = scrubbed(text).encode()
        if several and labels[form]["line"]:
            labels[form].setdefault("file", "launch.log")
    write_packed(LOGS, files)
    _write_labels(recipe, labels)
    return labels[min(labels)]


def logs_of(recipe: Recipe, env: str) -> dict[str, str]:
    """Return the texts of a run by file; the name of a single one is empty."""
    files, one, folder = read_packed(LOGS), f"{recipe.name}/{env}.log", f"{recipe.name}/{env}/"
    if one in files:
        return {"": files[one].decode("utf-8")}
    found = {path.removeprefix(folder): content for path, content in files.items() if path.startswith(folder)}
    return {name: content.decode("utf-8") for name, content in found.items()}


def relabel(recipe: Recipe) -> None:
    """Find the roots of a recipe anew in the logs that are there."""
    for env, label in labels_of(recipe).items():
        ran = Ran(code=label["exit"], logs={}, versions=label["versions"])
        try:
            new = label_of(recipe, ran, logs_of(recipe, env))
        except Missed as error:
            print(f"{recipe.name} on {env}: {error}")
            continue
        if new != label:
            print(f"{recipe.name} on {env}: line {label['line']} -> {new['line']}")
            _write_labels(recipe, {env: new})


def _write_labels(recipe: Recipe, labels: dict[str, Any]) -> None:
    path = recipe.labels
    kept = json.loads(lzma.decompress(path.read_bytes()))
    kept[recipe.name] = {**labels_of(recipe), **labels}
    path.write_bytes(lzma.compress(_text_of_labels(kept).encode(), preset=9))


def _text_of_labels(kept: dict[str, dict[str, Any]]) -> str:
    """Return the labels of a half, each on a line of its own."""
    own = {
        name: ",\n".join(
            f"  {json.dumps(env)}: {json.dumps(label, sort_keys=True, ensure_ascii=False)}"
            for env, label in sorted(labels.items())
        )
        for name, labels in sorted(kept.items())
    }
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {{\n{text}\n }}" for name, text in own.items()) + "\n}\n"


def labels_of(recipe: Recipe) -> dict[str, Any]:
    """Return the labels of a recipe's logs by environment."""
    return dict(json.loads(lzma.decompress(recipe.labels.read_bytes())).get(recipe.name, {}))


def _misses() -> Path:
    return state_folder() / "missed.json"


def _was_missed(recipe: Recipe, env: str) -> bool:
    """Whether this very recipe was tried here already, in vain; `--again` tries it all the same."""
    kept = json.loads(_misses().read_text()) if _misses().exists() else {}
    return bool(kept.get(f"{recipe.name} {env}") == repr(recipe))


def _remember(recipe: Recipe, env: str) -> None:
    kept = json.loads(_misses().read_text()) if _misses().exists() else {}
    _misses().write_text(json.dumps({**kept, f"{recipe.name} {env}": repr(recipe)}))


def main() -> int:
    """Record what is asked for; 1 when something was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--again", action="store_true", help="also what has a log")
    parser.add_argument("--on", help="this environment alone")
    parser.add_argument("--try", action="store_true", dest="trial", help="print the log and its label, keep nothing")
    parser.add_argument("--list", action="store_true", help="only say what would be recorded")
    parser.add_argument("--relabel", action="store_true", help="find the roots anew in the logs that are there")
    asked = parser.parse_args()
    if asked.relabel:
        for recipe in recipes():
            relabel(recipe)
        return 0
    make_base()
    missed = 0
    for recipe in recipes():
        if recipe.needs or (asked.names and recipe.name not in asked.names):
            continue
        for env in recipe.on:
            done = any(name in labels_of(recipe) for name in (env, f"{env}-split")) or _was_missed(recipe, env)
            if (asked.on and env != asked.on) or (done and not (asked.again or asked.trial)):
                continue
            missed += _one(recipe, env, trial=asked.trial, only_list=asked.list)
    return 1 if missed else 0


def _one(recipe: Recipe, env: str, *, trial: bool, only_list: bool) -> int:
    print(f"{recipe.name} on {env}", flush=True)
    if only_list:
        return 0
    make_environment(env)
    ran = run_recipe(recipe, env)
    try:
        if trial:
            for form, logs in (ran.forms or {"": ran.logs}).items():
                for name, text in logs.items():
                    print(f"--- {form} {name}\n{text}")
                print(f"--- exit {ran.code}", label_of(recipe, ran, logs))
        else:
            label = keep(recipe, env, ran)
            print(f"  exit {label['exit']}, line {label['line']}", flush=True)
    except Missed as error:
        _remember(recipe, env)
        print(f"  MISSED: {error}; exit {ran.code}", flush=True)
        for name, text in (ran.logs or ran.forms.get("merged", {})).items():
            print(f"--- {name}\n" + "\n".join(text.split("\n")[-25:])[-3000:], flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
