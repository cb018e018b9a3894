"""Common names of metrics (`reward`, `kl`, …) for the keys of verl, TRL, slime and OpenRLHF: `metric_names.toml`."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path

from rlbox.config.toml_files import load_toml


@functools.cache
def load_trainer_keys_by_common_name() -> Mapping[str, tuple[str, ...]]:
    """Return the keys of all trainers, in order of preference; a common name is the first of its own keys."""
    table = load_toml(Path(__file__).with_suffix(".toml"))
    return {name: (name, *(key for keys in row["keys"].values() for key in keys)) for name, row in table.items()}


def find_key_of_metric_or_empty(name: str, keys: Collection[str]) -> str:
    """Return the key that holds a metric: the best one for a common name, else the name itself; empty: none does."""
    return next((key for key in load_trainer_keys_by_common_name().get(name, (name,)) if key in keys), "")


def map_keys_to_common_names(keys: Collection[str]) -> dict[str, str]:
    """Return the common name of each key of one source; of several keys for a name only the best has it."""
    return {
        key: name for name in load_trainer_keys_by_common_name() if (key := find_key_of_metric_or_empty(name, keys))
    }
