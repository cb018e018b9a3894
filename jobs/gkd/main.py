"""Start the recipe as main_gkd.py does: `gkd.main --config-path … --config-name … KEY=VALUE…`."""

from __future__ import annotations

from typing import Any

import hydra
import ray
from recipe.gkd import main_gkd

from gkd.runner import TaggedRunner


@hydra.main(config_path=None, version_base=None)
def main(config: Any) -> None:
    """Run the recipe with the runner that tells where it is."""
    main_gkd.TaskRunner = ray.remote(num_cpus=1)(TaggedRunner)
    main_gkd.run_on_policy_distill(config)


if __name__ == "__main__":
    main()
