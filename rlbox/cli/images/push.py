"""`rlbox push`: the image into a registry, proven there."""

from __future__ import annotations

from typing import Any

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import dry_run, shared, stack_option


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--to", "destination", metavar="REF", required=True, help="REGISTRY/NAMESPACE/NAME[:TAG].")
@click.option("--plain-http", is_flag=True, help="Allow http to a registry on another machine.")
@stack_option
@dry_run
@shared
def verb(app: App, name: str, destination: str, plain_http: bool, force: bool) -> int:
    """Push the image of TARGET to REF and print the name that always means these bytes.

    REF without a tag gets `latest`; a REF that ends in '/' gets the target's name. Credentials are those of
    `docker login`. What the registry has already is not sent again.

    \b
    Examples:
      rlbox push local --to registry.example/team/
      rlbox push local --to 127.0.0.1:5000/team/local:v1
    """
    from rlbox.engine.push_target import ImagePush
    from rlbox.engine.reference import push_reference
    from rlbox.image.adopt import own_image
    from rlbox.image.plans import image_plan
    from rlbox.planner.stack_check import require_stack

    forced = require_stack(app, name, force=force)
    reference, plan = push_reference(destination, name), image_plan(app.project, name)
    image: dict[str, Any] = {}
    with app.checking("image"):
        image = own_image(app, plan)
    return ImagePush(app, name, plan.tag, reference, plain_http=plain_http, forced=forced).carry_out(image)
