"""What is rented on vast.ai for a target, and from whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlbox.amounts import counted, decimal_size_text
from rlbox.app import App
from rlbox.engine.reference import parse_reference
from rlbox.engine.registry_client import Registry
from rlbox.errors import RegistryError, WorkFailed
from rlbox.fixes.catalogue import load_target_with_fix_packages
from rlbox.fixes.conditions import list_stack_versions
from rlbox.fixes.render import select_and_render_fixes
from rlbox.i18n import _
from rlbox.image.forms import OnstartScript, render_onstart, require_vast_target
from rlbox.image.plan import load_image_plan
from rlbox.system.network_settings import find_custom_ca_bundle
from rlbox.target.lock import load_lock
from rlbox.target.target import Target, load_target
from rlbox.vast.api import search_offers
from rlbox.vast.offers import Offer, make_offer_filter, require_fitting_offers
from rlbox.vast.remote_job import JOB_DIRECTORY, format_job_agent_start_shell
from rlbox.vast.request import Quote, choose_plain_image, make_create_request, parse_docker_options


@dataclass(frozen=True, kw_only=True)
class RentalOptions:
    """On which terms an instance is rented; `timeout` in seconds, prices in dollars, 0 for the target's own."""

    offer: int | None
    image: str
    price: float
    bid: float
    disk: float
    timeout: float
    yes: bool


def load_vast_target(app: App, name: str) -> Target:
    target = load_target(app.project, name).target
    require_vast_target(target)
    return target


def render_target_onstart(
    app: App, target: Target, agent_start_script: str = "", upload_dir: str = "", *, force: bool = False
) -> OnstartScript:
    """Return the on-start script of a target; `force`: also of a stack that contradicts itself."""
    loaded = load_target_with_fix_packages(app.project, target.name)
    versions = list_stack_versions(loaded.target, None)
    select_and_render_fixes(loaded.all_fixes, loaded.target, versions)  # for what they refuse
    folders = app.project.template_dirs()
    return render_onstart(loaded.target, folders, agent_start_script, upload_dir, ignore_stack_conflicts=force)


def render_instance_onstart(app: App, target: Target, *, uploads_rlbox: bool, force: bool) -> OnstartScript:
    """Return the script of an instance: every start of it takes up again what `vast up` began there."""
    disk = target.disk.mount
    upload_dir = f"{disk}/{JOB_DIRECTORY}" if uploads_rlbox else ""
    return render_target_onstart(app, target, format_job_agent_start_shell(disk), upload_dir, force=force)


def make_quote(app: App, target: Target, options: RentalOptions, job: str = "", *, force: bool = False) -> Quote:
    """Return what would be rented for a target, from whom; a dry run keeps why there is no offer.

    For a `job` and without an image of the target's own it is a plain CUDA image, to which rlbox is sent.
    """
    script = render_instance_onstart(app, target, uploads_rlbox=bool(job), force=force)
    image, setup = options.image or target.vast.image, ""
    if job and not image and not target.base.holds:  # what a base image holds, no index has
        image, setup = choose_plain_image(target.hardware.cuda_driver), _describe_setup(app, target.name)
    env = parse_docker_options(target, image)
    needs = make_offer_filter(target, env, price=options.price, disk_gb=options.disk, bid=options.bid)
    request = make_create_request(target, needs, env, script.field_text, image=image, job=job)
    with app.collecting_refusals_if_dry_run("image"):
        require_published_if_registry_answers(app, image)
    offer = None
    with app.collecting_refusals_if_dry_run("offers"):
        offer = _choose_offer(require_fitting_offers(search_offers(needs), needs), options.offer)
    return Quote(request=request, needs=needs, offer=offer, setup_summary=setup)


def _choose_offer(offers: Sequence[Offer], offer_id: int | None) -> Offer:
    for offer in offers:
        if offer_id in (None, offer.id):
            return offer
    raise WorkFailed(
        _("offer {number} is taken, or does not fit the target and its price limit").format(number=offer_id),
        next_step=_("take another: {fitting}").format(fitting=", ".join(str(offer.id) for offer in offers[:8])),
    )


def require_published_if_registry_answers(app: App, image: str) -> None:
    """Raise `RegistryError` when an image is not in its registry; what cannot be told from here is only said.

    A registry that wants a login, or is not reached from here, may answer the platform.
    """
    reference = parse_reference(image)
    try:
        with Registry(reference.host, ca_bundle=find_custom_ca_bundle(), pause=lambda seconds: None) as registry:
            manifest = registry.find_manifest(reference.repository, reference.digest or reference.tag or "latest")
    except RegistryError as error:
        if app.dry_run:
            app.record_as_unchecked(error.what, f"image {image}")
        else:
            app.print_status(f"not checked: image {image}: {error.what}")
        return
    if manifest is None:
        raise RegistryError(
            _("{host} has no image {image}").format(host=reference.host, image=image),
            where=reference.host,
            next_step=_("rlbox push TARGET --to REGISTRY/NAME:TAG, then --image that"),
        )


def _describe_setup(app: App, target_name: str) -> str:
    """Return what is done on an instance with a plain image; the lock must be there, and fresh."""
    with app.collecting_refusals_if_dry_run("lock"):
        load_image_plan(app.project, target_name).require_current_lock()
    lock = load_lock(app.project.own_or_shipped_lock_file(target_name))
    packages = [package for group in lock.groups for package in group.packages] if lock else []
    size = decimal_size_text(sum(package.size for package in packages))
    return f"rlbox is sent over ssh; it installs {counted(len(packages), 'package', 'packages')} of the lock, {size}"
