"""What is rented on vast.ai for a target: the request within the platform's limits, from whom, and at what price."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import decimal_size_text, pad_translated
from rlbox.app import App
from rlbox.engine.reference import parse_reference
from rlbox.engine.registry_client import Registry
from rlbox.errors import RegistryError, SpecError, WorkFailed, get_main_docs_url
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.render import render_fixes_or_raise_refusal
from rlbox.i18n import _, join, ngettext, translate
from rlbox.image.forms import OnstartScript, render_onstart, require_vast_target
from rlbox.image.plan import load_image_plan
from rlbox.secrets.masks import is_literal_secret
from rlbox.system.network_settings import find_env_or_pip_ca_bundle_or_empty
from rlbox.target.lock import load_lock
from rlbox.target.platform import Platform, load_platform
from rlbox.target.target import Target, load_target
from rlbox.vast.api import LABEL_PREFIX, InstanceCreateRequest, search_raw_offers
from rlbox.vast.offers import Offer, OfferFilter, format_gb_as_decimal_size, make_offer_filter, require_fitting_offers
from rlbox.vast.remote_job import JOB_DIRECTORY, format_job_agent_start_shell

# vast-ai/docs guides/instances/docker-environment.mdx, networking.mdx; create_instance.yaml, x-input-validation.
MAX_ENV_VALUE = 256
_MODE_PORTS = {"ssh": (22,), "jupyter": (22, 8080)}
_PORT = re.compile(r"(\d{1,5}):(\d{1,5})(/(?:tcp|udp))?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_docker_options_to_vast_env(target: Target) -> dict[str, str]:
    """Return the docker options of a target's instances, in the form of the call that creates an instance.

    There ports and networks are keys of the object of variables, too. Source: vast-ai/docs
    api-reference/creating-instances-with-api.mdx, "Common Pitfalls"; `parse_env` of vastai.

    Raises
    ------
    SpecError
        There is an option that the platform ignores, a port that it has itself, a value that it does not take or that
        looks like a secret; all of them are named.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-e", "--env", action="append", default=[])
    parser.add_argument("-p", "--publish", action="append", default=[])
    parser.add_argument("-n", dest="networks", action="append", default=[])
    parser.add_argument("-h", "--hostname", default="")
    try:
        given, ignored = parser.parse_known_args(shlex.split(target.vast.options))
        text = _("{options}: ignored by vast.ai, it takes -e, -p, -h and -n alone")
        problems: list[str] = [text.format(options=" ".join(ignored))] if ignored else []
        no_value = _("-e {name}: a value is needed, NAME=VALUE")
        problems += [no_value.format(name=row) for row in given.env if "=" not in row]
        env = dict(row.split("=", 1) for row in given.env if "=" in row)
        problems += _find_env_problems(env)
        problems += _find_port_problems(given.publish, target.vast.mode)
    except (ValueError, argparse.ArgumentError) as error:
        problems = [f"{target.vast.options!r}: {error}"]
    if problems:
        raise SpecError(
            join("\n  ", problems),
            where=f"images/{target.name}/target.toml: vast.options",
            next_step=_("change them: {page} says more").format(page=get_main_docs_url("vast")),
        )
    env |= {f"-p {port}": "1" for port in given.publish} | {f"-n {name}": "1" for name in given.networks}
    return env | ({"-h": given.hostname} if given.hostname else {})


def _find_env_problems(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        if not _NAME.fullmatch(name):
            yield _("-e {name}=...: not the name of a variable").format(name=name)
        if is_literal_secret(name, value):
            text = _("-e {name}=...: looks like a secret: it belongs into .env on the data disk, or the account")
            yield text.format(name=name)
        if len(name) + len(value) > MAX_ENV_VALUE:
            text = _("-e {name}=...: {count} characters, and {limit} are taken")
            yield text.format(name=name, count=len(name) + len(value), limit=MAX_ENV_VALUE)


def _find_port_problems(ports: Sequence[str], mode: str) -> Iterator[str]:
    for port in ports:
        match = _PORT.fullmatch(port)
        if not match:
            text = _("-p {port}: PORT:PORT is taken, or PORT:PORT/udp (from 70000 on: one number on both sides)")
            yield text.format(port=port)
        elif int(match[2]) in _MODE_PORTS[mode]:
            text = _("-p {port}: {number} is the platform's own in {mode} mode")
            yield text.format(port=port, number=match[2], mode=mode)


# Small images that have no more than the platform needs; the lock brings Python packages, compilers and CUDA.
# Ubuntu 24.04 where there is one: the glibc of 22.04 is older than that of the targets' locks (manylinux_2_36).
# Source: hub.docker.com/r/nvidia/cuda, tags; the image's NVIDIA_REQUIRE_CUDA refuses older drivers.
_PLAIN_IMAGES = (
    ("13.0", "nvidia/cuda:13.0.2-base-ubuntu24.04"),
    ("12.8", "nvidia/cuda:12.8.1-base-ubuntu24.04"),
    ("12.6", "nvidia/cuda:12.6.3-base-ubuntu24.04"),
    ("12.4", "nvidia/cuda:12.4.1-base-ubuntu22.04"),
)


def choose_plain_cuda_image(max_cuda_version: str) -> str:
    """Return the newest CUDA image that a driver for `max_cuda_version` starts; without a version, the oldest."""
    driver = tuple(map(int, max_cuda_version.split("."))) if max_cuda_version else (0,)
    fitting = [image for cuda, image in _PLAIN_IMAGES if tuple(map(int, cuda.split("."))) <= driver]
    return fitting[0] if fitting else _PLAIN_IMAGES[-1][1]


def _require_image_and_price(target: Target, image: str, needs: OfferFilter) -> None:
    problems = [] if image else [_("no image to pull: pass --image or set vast.image")]
    problems += [] if needs.max_hourly_usd else [_("no price limit: pass --price or set vast.max_price")]
    if problems:
        raise SpecError(
            join("\n  ", problems),
            where=f"images/{target.name}/target.toml: vast",
            next_step=_("rlbox push {target} --to REGISTRY/NAME:TAG, then --image that; {page}").format(
                target=target.name, page=get_main_docs_url("vast")
            ),
        )


@dataclass(frozen=True, kw_only=True)
class RentalQuote:
    """What is rented, from whom and at what price; no offer in a dry run that could not ask for one.

    `setup_summary` is what is done there before the job, empty for an image of the target's own.
    """

    request: InstanceCreateRequest
    needs: OfferFilter
    offer: Offer | None
    setup_summary: str = ""

    def format(self) -> str:
        request = self.request
        rows = [(_("image"), request.image), *([(_("setup"), self.setup_summary)] if self.setup_summary else [])]
        rows += [
            (_("disk"), format_gb_as_decimal_size(request.disk)),
            (_("label"), request.label),
            (_("mode"), request.mode),
        ]
        rows += [(_("env"), f"{name}={value}") for name, value in request.env.items()]
        rows += [(_("onstart"), _("{count} characters").format(count=len(request.onstart)))]
        rows += [(_("query"), self.needs.to_query())]
        rows += [(_("cost"), line) for line in self.format_offer_and_price_lines()]
        return "\n".join(f"{pad_translated(key, 8)} {translate(value)}" for key, value in rows)

    def format_offer_and_price_lines(self) -> list[str]:
        if (offer := self.offer) is None:
            text = _("at most ${price} an hour (assumed: the ceiling)")
            return [text.format(price=f"{self.needs.max_hourly_usd:g}")]
        storage = _("${price} an hour for the disk when it is stopped, until it is destroyed")
        traffic = _("${price} at most for a TB of traffic, in either direction")
        return [
            _("offer {offer}: {gpus} x {gpu}, {place}").format(
                offer=offer.id, gpus=offer.gpus, gpu=offer.gpu_name, place=offer.place or _("somewhere")
            ),
            _("${price} an hour while it runs").format(price=f"{offer.price:.3f}"),
            storage.format(price=f"{offer.storage:.3f}"),
            traffic.format(price=f"{offer.traffic * 1000:.2f}"),
        ]

    def as_json(self) -> dict[str, Any]:
        offer = self.offer.as_json() if self.offer else None
        cost: dict[str, Any] = {"hour": self.needs.max_hourly_usd, "assumed": True}
        if offer:
            cost = {"hour": offer["price"], "stopped_hour": offer["storage"], "traffic_gb": offer["traffic"]}
        return {
            "target": self.request.target,
            "created": False,
            "request": asdict(self.request),
            "setup": self.setup_summary,
            "query": self.needs.to_query(),
            "offer": offer,
            "cost": cost,
        }


@dataclass(frozen=True, kw_only=True)
class RentalOptions:
    """On which terms an instance is rented; `timeout` in seconds, `price` in dollars, 0 for the target's own."""

    offer: int | None
    image: str
    price: float
    timeout: float
    yes: bool


def load_and_require_vast_target(app: App, name: str) -> Target:
    target = load_target(app.project, name).target
    require_vast_target(target)
    return target


def render_target_onstart_unless_fix_refuses(
    app: App,
    target: Target,
    platform: Platform,
    agent_start_script: str = "",
    upload_dir: str = "",
    *,
    as_provisioning_script: bool = False,
    ignore_stack_conflicts: bool = False,
) -> OnstartScript:
    """Return the start script of a target, also for another platform than its own.

    `ignore_conflicts`: Also of a stack that contradicts itself.
    """
    loaded = load_target_with_fix_apt_packages(app.project, target.name)
    hardware = loaded.target.hardware.model_copy(update={"platform": platform.name})
    moved = loaded.target.model_copy(update={"hardware": hardware})
    versions = map_packages_to_version_or_empty(moved, None)
    render_fixes_or_raise_refusal(loaded.all_fixes, moved, versions)  # for what they refuse
    return render_onstart(
        loaded.target,
        platform,
        app.project.list_existing_template_dirs_except_packs(),
        agent_start_script,
        upload_dir,
        as_provisioning_script=as_provisioning_script,
        ignore_stack_conflicts=ignore_stack_conflicts,
    )


def render_onstart_with_job_agent(
    app: App, target: Target, *, uploads_rlbox: bool, ignore_stack_conflicts: bool
) -> OnstartScript:
    """Return the script of an instance: every start of it takes up again what `vast up` began there."""
    disk = target.disk.mount
    upload_dir = f"{disk}/{JOB_DIRECTORY}" if uploads_rlbox else ""
    agent = format_job_agent_start_shell(disk)
    return render_target_onstart_unless_fix_refuses(
        app, target, load_platform("vast"), agent, upload_dir, ignore_stack_conflicts=ignore_stack_conflicts
    )


def require_image_and_offer_unless_dry_run(
    app: App, target: Target, options: RentalOptions, job: str = "", *, force: bool = False
) -> RentalQuote:
    """Return what would be rented for a target, from whom; a dry run keeps why there is no offer.

    For a `job` and without an image of the target's own it is a plain CUDA image, to which rlbox is sent.
    """
    script = render_onstart_with_job_agent(app, target, uploads_rlbox=bool(job), ignore_stack_conflicts=force)
    image, setup = options.image or target.vast.image, ""
    if job and not image and not target.base.holds:  # what a base image holds, no index has
        image, setup = choose_plain_cuda_image(target.hardware.cuda_driver), _describe_setup(app, target.name)
    env = parse_docker_options_to_vast_env(target)
    needs = make_offer_filter(target, env, options.price)
    _require_image_and_price(target, image, needs)
    request = InstanceCreateRequest(
        target=target.name,
        image=image,
        disk=needs.disk_gb,
        label=f"{LABEL_PREFIX}{target.name} {job}".rstrip(),
        env=env,
        onstart=script.field_text,
        mode=target.vast.mode,
    )
    with app.collecting_refusals_if_dry_run("image"):
        require_published_or_report_unchecked(app, image)
    offer = None
    with app.collecting_refusals_if_dry_run("offers"):
        offer = _choose_offer(require_fitting_offers(search_raw_offers(needs), needs), options.offer)
    return RentalQuote(request=request, needs=needs, offer=offer, setup_summary=setup)


def _choose_offer(offers: Sequence[Offer], offer_id: int | None) -> Offer:
    for offer in offers:
        if offer_id in (None, offer.id):
            return offer
    raise WorkFailed(
        _("offer {number} is taken, or does not fit the target and its price limit").format(number=offer_id),
        next_step=_("take another: {fitting}").format(fitting=", ".join(str(offer.id) for offer in offers[:8])),
    )


def require_published_or_report_unchecked(app: App, image: str) -> None:
    """Raise `RegistryError` when an image is not in its registry; what cannot be told from here is only said.

    A registry that wants a login, or is not reached from here, may answer the platform.
    """
    reference = parse_reference(image)
    try:
        with Registry(
            reference.host, ca_bundle=find_env_or_pip_ca_bundle_or_empty(), pause=lambda seconds: None
        ) as registry:
            manifest = registry.find_manifest(reference.repository, reference.digest or reference.tag or "latest")
    except RegistryError as error:
        if app.dry_run:
            app.add_dry_run_unchecked(error.what, _("image {image}").format(image=image))
        else:
            app.print_status(_("not checked: image {image}: {what}").format(image=image, what=error.what))
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
    return ngettext(
        "rlbox is sent over ssh; it installs {count} package of the lock, {size}",
        "rlbox is sent over ssh; it installs {count} packages of the lock, {size}",
        len(packages),
    ).format(count=len(packages), size=size)
