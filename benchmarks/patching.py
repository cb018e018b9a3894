"""Goal 16: a build after one line of a patch changed."""

from __future__ import annotations

import difflib
import secrets
import zipfile

from benchmarks.building import bare_build_after, quiet_build
from benchmarks.pairs import Sample
from benchmarks.place import Place, run
from benchmarks.stack import Stack, Wish

PATCHED = "six.py"
SITE = "/opt/venv/lib/python3.11/site-packages"
PATCHES = f"""
[[patches]]
file = "one-line.patch"
into = "{SITE}"
"""


def patch_line(place: Place) -> Sample:
    """`rlbox build` of an image whose patch reads otherwise now, against BuildKit finding that nothing changed.

    The limit is BuildKit building that image.
    """
    stack = place.kept.get(Stack)
    kept, name = stack.place, f"patched-{stack.mark}"
    folder = kept.project / "images" / name
    (folder / "patches").mkdir(parents=True, exist_ok=True)
    (folder / "target.toml").write_text(stack.spec_text(Wish()) + PATCHES)
    original = _original(stack)

    def change() -> None:
        changed = [f"# changed: {secrets.token_hex(4)}\n", *original]
        text = "".join(difflib.unified_diff(original, changed, f"a/{PATCHED}", f"b/{PATCHED}"))
        (folder / "patches/one-line.patch").write_text(text)
        run(kept.rlbox("lock", name).argv, env=kept.env, cwd=kept.project)

    change()
    kept.remove_at_end(kept.image(name))
    run(kept.rlbox("build", name).argv, env=kept.env, cwd=kept.project)
    ours = kept.rlbox("build", name, before=change, says="built")
    return place.compare(ours, quiet_build(kept, name), bare_build_after(kept, name, change))


def _original(stack: Stack) -> list[str]:
    """Return the lines of the file that is patched."""
    wheel = next(wheel for name, wheel in stack.mirror.wheels.items() if name.startswith("six-"))
    with zipfile.ZipFile(wheel.path) as archive:
        return archive.read(PATCHED).decode().splitlines(keepends=True)
