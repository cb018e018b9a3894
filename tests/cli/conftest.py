"""What is not asked here: the network, and the engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import pytest
from fakes import CHECKOUT

from rlbox.engine.container import ContainerPlan
from rlbox.errors import EngineError
from rlbox.fixes.fix import Fix
from rlbox.fixes.load import load_fixes
from rlbox.sources.egress import EgressFacts
from rlbox.sources.mirrors import Machine
from rlbox.spec.project import Project


def no_image(plan: ContainerPlan, words: tuple[str, ...], name: str) -> NoReturn:
    """Refuse as an engine without the image would be told of."""
    raise EngineError(f"the engine has no image {plan.image}", next_step=f"rlbox build {name}")


def no_engine() -> NoReturn:
    """Refuse as where none answers."""
    raise EngineError("no engine answers")


@pytest.fixture(scope="module")
def catalogue() -> tuple[Fix, ...]:
    """The fixes that rlbox ships."""
    return load_fixes(Project(folder=CHECKOUT))


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that the tests of a file share."""
    return tmp_path_factory.mktemp("memory")


@pytest.fixture
def remembering(catalogue: tuple[Fix, ...], memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the catalogue once, and keep the plans of images from test to test: that is most of the time of a verb."""
    monkeypatch.setattr("rlbox.fixes.load.load_fixes", lambda project: catalogue)
    monkeypatch.setenv("XDG_CACHE_HOME", str(memory))


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `egress` and `mirrors probe` ask the network, `show` and `components` the engine, is not asked here."""
    monkeypatch.setitem(sys.modules, "rlbox.engine.act.docker", None)  # whether or not an earlier test imported it
    monkeypatch.setattr("rlbox.engine.act.bring.engine", no_engine)
    monkeypatch.setattr("rlbox.engine.act.bring.bring_engine", lambda say: None)
    monkeypatch.setattr("rlbox.run.shell._run", no_image)
    monkeypatch.setattr("rlbox.run.shell._limits", lambda app, image: image.container)
    monkeypatch.setattr("rlbox.vast.act.account.api_key", str)  # that client takes seconds to import
    monkeypatch.setattr("rlbox.image.act.show.find_image", lambda name: None)
    monkeypatch.setattr("rlbox.sources.act.probe.probe_machine", lambda site: Machine(site=site))
    monkeypatch.setattr("rlbox.sources.act.probe.probe_mirrors", lambda *asked: ())
    monkeypatch.setattr("rlbox.sources.act.mirrors.probe_machine", lambda site: Machine(site=site))
    monkeypatch.setattr("rlbox.sources.act.egress.probe_egress", lambda *asked: EgressFacts())
