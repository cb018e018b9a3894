"""One engine for all exports: weights are exchanged where that is proven, and everything else is a start of its own."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playbox import Player, export, playing

from rlbox.evaluation.policy import Policy, PolicyError
from rlbox.evaluation.server import Ready
from rlbox.evaluation.serving.kept_up import EXCHANGED, STARTED, KeptUp
from rlbox.evaluation.serving.together import Together
from rlbox.evaluation.suite import Suite
from rlbox.system.http import create_loopback_client


def weight(folder: str | Path) -> int:
    return (Path(folder) / "model.safetensors").read_bytes()[-1]


class Engines:
    """Engines that are started one after the other; `stale` plays what an exchange leaves of the weights before."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.up = 0
        self.said: list[str] = []
        self.exchanges, self.stale, self.deaf = True, 0.0, False
        self.players: list[Player] = []
        self.version = "0.0.1"
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def start(self, export: Path, folder: Path) -> Iterator[Ready]:
        held, left = [float(weight(export))], [0.0]

        def reload(path: str) -> None:
            if not self.deaf:
                left[0] = self.stale * held[0]
                held[0] = float(weight(path))

        player = Player(lambda ask, number: f"step {held[0]:.0f}", root=str(export))
        player.version = self.version
        player.computes = lambda text: -held[0] - left[0] - len(text)
        player.reload = reload if self.exchanges else None
        with self._lock:
            self.started.append(export.name)
            self.players.append(player)
            self.up += 1
        try:
            with playing(player):
                yield lambda: Policy(player.url, create_loopback_client(10))
        finally:
            with self._lock:
                self.up -= 1

    def kept_up(self, **engine: str) -> KeptUp:
        return KeptUp(self.start, engine, self.said.append)


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Engines()


@pytest.fixture
def exports(tmp_path: Path) -> list[Path]:
    return [export(tmp_path / f"step_{number}", seed=number) for number in (1, 2, 3, 4)]


def serve_all(kept: KeptUp, exports: list[Path], tmp_path: Path) -> list[str]:
    """Serve each, and return how its weights came in."""
    found = []
    for one in exports:
        with kept(one, tmp_path) as policy:
            assert Path(policy.root) == one
            found.append(policy.loaded)
    kept.close()
    return found


def test_weights_are_exchanged_once_that_is_proven(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    assert serve_all(engines.kept_up(), exports, tmp_path) == [STARTED, STARTED, EXCHANGED, EXCHANGED]
    assert engines.started == ["step_1", "step_2"]
    assert engines.said == [
        "first exchange of weights in this engine: one that starts with \u2068step_2\u2069 must say the same",
        "proven: log-probabilities are equal to the last digit; weights are exchanged from now on",
    ]
    assert serve_all(engines.kept_up(), exports, tmp_path) == [STARTED, EXCHANGED, EXCHANGED, EXCHANGED]
    assert (engines.started[2:], engines.up) == (["step_1"], 0)


def test_another_engine_needs_a_proof_of_its_own(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    serve_all(engines.kept_up(dtype="bfloat16"), exports[:2], tmp_path)
    assert serve_all(engines.kept_up(dtype="float32"), exports[:3], tmp_path) == [STARTED, STARTED, EXCHANGED]


def test_an_exchange_that_leaves_something_is_not_used(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    engines.stale = 1e-3
    assert serve_all(engines.kept_up(), exports, tmp_path) == [STARTED] * 4
    assert engines.started == ["step_1", "step_2", "step_3", "step_4"]
    assert engines.said[-1] == (
        "not proven: log-probabilities differ by up to 0.001; the engine is started anew for each export"
    )


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("exchanges", "weights cannot be exchanged, the engine is started anew: "),
        ("deaf", "the engine answers with \u2068step_2\u2069 as it did before: it is started anew"),
    ],
)
def test_an_engine_that_cannot_is_started_anew(
    engines: Engines, exports: list[Path], tmp_path: Path, broken: str, told: str
) -> None:
    setattr(engines, broken, broken == "deaf")
    assert serve_all(engines.kept_up(), exports[:2], tmp_path) == [STARTED] * 2
    assert engines.started == ["step_1", "step_2"]
    assert engines.said[0].startswith(told)


def _context(folder: Path) -> None:
    (folder / "config.json").write_text('{"max_position_embeddings": 1}')


def _torn(folder: Path) -> None:
    (folder / "config.json").write_text('{"max_position_em')


def _template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}!")


@pytest.mark.parametrize("change", [_context, _template, _torn])
def test_another_form_is_started_anew(
    engines: Engines, exports: list[Path], tmp_path: Path, change: Callable[[Path], None]
) -> None:
    change(exports[1])
    assert serve_all(engines.kept_up(), exports[:2], tmp_path) == [STARTED] * 2
    assert engines.said == ["\u2068step_2\u2069 is a model of another form: the engine is started anew"]


def test_where_it_was_read_from_is_no_other_form(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    for one in exports:
        (one / "config.json").write_text(f'{{"_name_or_path": "{one}"}}')
    assert serve_all(engines.kept_up(), exports[:3], tmp_path) == [STARTED, STARTED, EXCHANGED]


def test_the_same_files_are_not_loaded_again_and_others_are(
    engines: Engines, exports: list[Path], tmp_path: Path
) -> None:
    kept = engines.kept_up()
    with kept(exports[0], tmp_path):
        pass
    with kept(exports[0], tmp_path) as policy:
        assert policy.loaded == STARTED
    assert engines.started == ["step_1"]
    shard = exports[0] / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x09")
    with kept(exports[0], tmp_path):
        pass
    assert engines.started == ["step_1", "step_1"]
    kept.close()


def test_what_fails_is_not_kept_up(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    kept = engines.kept_up()
    with pytest.raises(PolicyError), kept(exports[0], tmp_path):
        raise PolicyError("it died")
    assert engines.up == 0
    with kept(exports[1], tmp_path) as policy:
        assert policy.loaded == STARTED
    kept.close()


def test_a_start_that_was_begun_is_the_first_ones(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    kept = engines.kept_up()
    kept.begin(exports[0], tmp_path)
    assert (engines.started, engines.up) == (["step_1"], 1)
    assert serve_all(kept, exports, tmp_path) == [STARTED, STARTED, EXCHANGED, EXCHANGED]
    assert engines.started == ["step_1", "step_2"]


def test_a_start_that_was_begun_for_another_is_ended(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    """Also where the files changed meanwhile, and where nothing is served at all."""
    kept = engines.kept_up()
    kept.begin(exports[0], tmp_path)
    assert serve_all(kept, exports[1:2], tmp_path) == [STARTED]
    assert (engines.started, engines.up) == (["step_1", "step_2"], 0)
    kept.begin(exports[0], tmp_path)
    (exports[0] / "model.safetensors").write_bytes(b"other weights")
    assert serve_all(kept, exports[:1], tmp_path) == [STARTED]
    assert (engines.started[2:], engines.up) == (["step_1", "step_1"], 0)
    kept.begin(exports[1], tmp_path)
    kept.close()
    assert engines.up == 0


def test_a_start_that_fails_is_told_when_it_is_wanted(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    @contextlib.contextmanager
    def broken(export: Path, folder: Path) -> Iterator[Ready]:
        engines.started.append(export.name)
        raise PolicyError("no memory")
        yield

    kept = KeptUp(broken, {}, engines.said.append)
    kept.begin(tmp_path / "nothing", tmp_path)
    kept.begin(exports[0], tmp_path)
    with pytest.raises(PolicyError, match="no memory"), kept(exports[0], tmp_path):
        pass
    assert engines.started == ["step_1"]
    with pytest.raises(PolicyError, match="no memory"), kept(exports[0], tmp_path):
        pass
    assert engines.started == ["step_1", "step_1"]


def test_several_begin_together(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    together = Together([engines.kept_up() for _ in range(2)])
    together.begin(exports[0], tmp_path)
    assert engines.started == ["step_1", "step_1"]
    with together(exports[0], tmp_path) as policy:
        assert policy.servers == 2
    assert engines.started == ["step_1", "step_1"]
    together.close()
    assert engines.up == 0


def test_several_share_the_work_and_none_is_left(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    """Each has the weights of the export; questions go to whoever has least to do."""
    together, decoding, found = Together([engines.kept_up() for _ in range(3)]), Suite(name="x", title="x").decoding, []
    for one in exports:
        with together(one, tmp_path) as policy, ThreadPoolExecutor(6) as askers:
            found.append(policy.loaded)
            asked = [askers.submit(policy.answer, policy.prompt("a"), decoding, number) for number in range(60)]
            assert {future.result().text for future in asked} == {f"step {one.name[-1]}"}
        assert policy.servers == 3
    assert found == [STARTED, STARTED, EXCHANGED, EXCHANGED]
    assert Counter(engines.started) == {"step_1": 3, "step_2": 3}
    assert all(sum(player.asked.values()) >= 20 for player in engines.players[3:])
    together.close()
    assert engines.up == 0


def test_one_of_several_that_does_not_start_ends_all(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    @contextlib.contextmanager
    def broken(export: Path, folder: Path) -> Iterator[Ready]:
        raise PolicyError("no memory")
        yield

    together = Together([engines.kept_up(), KeptUp(broken, {}, engines.said.append)])
    with pytest.raises(PolicyError, match="no memory"), together(exports[0], tmp_path):
        pass
    assert engines.up == 0
    together.close()


def test_engines_that_differ_are_refused(engines: Engines, exports: list[Path], tmp_path: Path) -> None:
    other = Engines()
    other.version = "0.0.2"
    together = Together([engines.kept_up(), other.kept_up()])
    with pytest.raises(PolicyError, match="is another engine than"), together(exports[0], tmp_path):
        pass
    together.close()
    assert (engines.up, other.up) == (0, 0)
