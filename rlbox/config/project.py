"""Where specs, jobs and templates are found: in the user's project folder, then in packs, then in rlbox itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlbox.config.packs import Pack
from rlbox.errors import SpecError
from rlbox.i18n import _

PACKAGE = Path(__file__).resolve().parent.parent
SHIPPED = ("images", "jobs", "templates")
"""Folders beside the package in a checkout, and within it in a wheel and an image."""
SHIPPED_PROFILES = PACKAGE / "artifacts" / "profiles"


def _shipped() -> Path:
    packed = PACKAGE / "_shipped"  # made by the wheel; a checkout has the folders beside the package
    return packed if packed.is_dir() else PACKAGE.parent


@dataclass(frozen=True, kw_only=True)
class Project:
    """A folder whose `images/`, `jobs/`, `sources/` and `templates/` extend or override those of packs and of rlbox."""

    folder: Path
    packs: tuple[Pack, ...] = ()

    @property
    def roots(self) -> tuple[Path, ...]:
        shipped = _shipped()
        own = () if self.folder == shipped else (self.folder,)
        return (*own, *(pack.folder for pack in self.packs), shipped)

    def require_target_file(self, name: str) -> Path:
        """Return the `target.toml` of a target.

        Raises SpecError: no such target; the message suggests the nearest and lists all.
        """
        return self._find("target", name, self.own_pack_and_shipped_target_files())

    def require_job_file(self, name: str) -> Path:
        return self._find("job", name, self.own_pack_and_shipped_job_files())

    def require_sources_profile_file(self, name: str) -> Path:
        return self._find(_("sources profile"), name, self.own_pack_and_shipped_source_profile_files())

    def own_pack_and_shipped_source_profile_files(self) -> dict[str, Path]:
        shipped = {path.stem: path for path in SHIPPED_PROFILES.glob("*.toml")}
        return dict(sorted({**shipped, **{path.stem: path for path in self._files("sources/*.toml")}}.items()))

    def own_pack_and_shipped_target_files(self) -> dict[str, Path]:
        return {path.parent.name: path for path in self._files("images/*/target.toml")}

    def own_pack_and_shipped_job_files(self) -> dict[str, Path]:
        return {path.stem: path for path in self._files("jobs/*.toml")}

    def own_pack_and_shipped_fix_files(self) -> dict[str, Path]:
        return {path.stem: path for path in self._files("templates/fixes/*.toml")}

    def own_or_shipped_lock_file(self, name: str) -> Path:
        spec = self.require_target_file(name)
        own = self.own_lock_file_to_write(name)
        return own if own.is_file() else spec.with_name("lock.json")

    def own_lock_file_to_write(self, name: str) -> Path:
        """Return where a target's lock is written: the project's folder, also for a target that rlbox ships."""
        return self.folder / "images" / name / "lock.json"

    def own_or_shipped_hub_lock_file(self, kind: Literal["target", "job"], name: str) -> Path:
        """Return where the models and data sets of a target or a job are locked."""
        own = self.own_hub_lock_file_to_write(kind, name)
        spec = self.require_target_file(name) if kind == "target" else self.require_job_file(name)
        return own if own.is_file() else spec.with_name(own.name)

    def own_hub_lock_file_to_write(self, kind: Literal["target", "job"], name: str) -> Path:
        return self.folder / (f"images/{name}/hub.lock.json" if kind == "target" else f"jobs/{name}.lock.json")

    def require_patch_files(self, target_name: str, patch_file_names: Sequence[str]) -> list[Path]:
        """Return a target's patches, in the folder `patches/` beside its spec; `SpecError` when one is missing."""
        folder = self.require_target_file(target_name).with_name("patches")
        if missing := [file for file in patch_file_names if not (folder / file).is_file()]:
            raise SpecError(
                _("patches: there is no file {missing}").format(missing=", ".join(missing)), where=str(folder)
            )
        return [folder / file for file in patch_file_names]

    def is_shipped(self, path: Path) -> bool:
        return path.is_relative_to(_shipped()) and not self.find_pack_or_none(path)

    def is_own(self, path: Path) -> bool:
        return path.is_relative_to(self.folder) and not self.find_pack_or_none(path)

    def find_pack_or_none(self, path: Path) -> Pack | None:
        """Return the pack that a file is part of; the environment with the pack may be inside of the project folder."""
        return next((pack for pack in self.packs if path.is_relative_to(pack.folder)), None)

    def list_existing_template_dirs_except_packs(self) -> list[Path]:
        folders = dict.fromkeys((self.folder / "templates", _shipped() / "templates"))
        return [folder for folder in folders if folder.is_dir()]

    def _files(self, pattern: str) -> list[Path]:
        """Return the files of that form in their order: one of the project for one of a pack for a shipped one.

        Raises SpecError: two packs have it, and the project does not.
        """
        found = {path.relative_to(root): path for root in reversed(self.roots) for path in root.glob(pattern)}
        if self.packs:
            self._require_in_one_pack(pattern, found)
        return [found[name] for name in sorted(found, key=lambda name: name.with_suffix(""))]

    def _require_in_one_pack(self, pattern: str, chosen: Mapping[Path, Path]) -> None:
        for pack in self.packs:
            for path in pack.folder.glob(pattern):
                name = path.relative_to(pack.folder)
                other = self.find_pack_or_none(chosen[name])
                if other not in (None, pack):
                    raise SpecError(
                        _("{name} is in two packs: {pack} and {other}").format(
                            name=name, pack=pack.name, other=other.name if other else ""
                        ),
                        where=str(path),
                        next_step=_("uninstall one of the packs, or copy the file that you need into your project"),
                    )

    def _find(self, kind: str, name: str, known: dict[str, Path]) -> Path:
        if name in known:
            return known[name]
        import difflib

        if kind == "target" and name in self.own_pack_and_shipped_job_files():
            raise SpecError(_("{name} is a job, not a target").format(name=name), next_step=f"rlbox run {name}")
        if kind == "job" and name in self.own_pack_and_shipped_target_files():
            raise SpecError(
                _("{name} is a target, not a job").format(name=name),
                next_step=f"rlbox build {name}, rlbox shell {name}",
            )
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise SpecError(
            _("unknown {kind} {name!r}{near}").format(
                kind=_(kind), name=name, near=_(" (did you mean {near!r}?)").format(near=near[0]) if near else ""
            ),
            where=", ".join(str(folder) for folder in self._folders(kind)),
            next_step=_("choose one of: {known}").format(known=", ".join(known) or _("none")),
        )

    def _folders(self, kind: str) -> tuple[Path, ...]:
        if kind == "sources profile":
            return (*(root / "sources" for root in self.roots[:-1]), SHIPPED_PROFILES)
        return tuple(root / ("images" if kind == "target" else "jobs") for root in self.roots)
