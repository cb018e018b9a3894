"""The Ray actor that runs the recipe with tagged lines: importable by the worker that holds it."""

from __future__ import annotations

from typing import Any


class TaggedRunner:
    """The recipe's TaskRunner, with the trainer of `gkd.tags` in the place of its own."""

    def run(self, config: Any) -> None:
        """Run the whole distillation."""
        from recipe.gkd import main_gkd

        from gkd.tags import tagged

        main_gkd.OnPolicyDistillTrainer = tagged(main_gkd.OnPolicyDistillTrainer)
        plain = main_gkd.TaskRunner.__ray_metadata__.modified_class
        plain().run(config)
