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
    on_head = {"node:__internal_head__": 0.001}  # where this job's programs are, and the teacher's loopback
    main_gkd.TaskRunner = ray.remote(num_cpus=1, resources=on_head)(TaggedRunner)
    main_gkd.run_on_policy_distill(config)


if __name__ == "__main__":
    main()
