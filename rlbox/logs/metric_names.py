"""Common names of metrics (`reward`, `kl`, …) for the keys of verl, TRL, slime and OpenRLHF: `metric_names.toml`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

from rlbox.config.toml_files import load_toml

_NOT_TRAINERS = ("meaning",)


@functools.cache
def load_trainer_keys_by_common_name() -> Mapping[str, tuple[str, ...]]:
    """Return the keys of all trainers, in order of preference; a common name is the first of its own keys."""
    table = load_toml(Path(__file__).with_suffix(".toml"))
    return {
        name: tuple(dict.fromkeys([name, *(k for who, keys in row.items() if who not in _NOT_TRAINERS for k in keys)]))
        for name, row in table.items()
    }


def find_key_of_metric_or_empty(name: str, keys: Iterable[str]) -> str:
    """Return the key that holds a metric: the best one for a common name, else the name itself; empty: none does."""
    present = set(keys)
    wanted = load_trainer_keys_by_common_name().get(name, (name,))
    return next((key for key in wanted if key in present), "")


def add_common_names(values: Mapping[str, float]) -> dict[str, float]:
    """Return values of one row by common name where there is one, else by the trainer's own key."""
    names = load_trainer_keys_by_common_name()
    common_name_by_key = {key: name for name in names if (key := find_key_of_metric_or_empty(name, values))}
    return {common_name_by_key.get(key, key): value for key, value in values.items()}
