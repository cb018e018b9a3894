"""Which data disk a command about runs looks at, the runs on it brought up to date, and their secrets masked.

With an engine on another machine the disk is there, too, and the command goes on beside it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from rlbox.amounts import utc_now
from rlbox.app import App
from rlbox.engine.address import find_engine_url, is_engine_on_unix_socket
from rlbox.engine.data_disk import resolve_data_dir_outside_system_dirs
from rlbox.errors import EngineError, EngineUnavailable, MachineError, RlboxError, SpecError
from rlbox.i18n import _
from rlbox.image.plan import load_image_plan
from rlbox.record.disk_lock import LockOwner
from rlbox.record.run_dir import load_plan_file
from rlbox.record.run_store import RunsNotReconciled, RunStore
from rlbox.run.backend import open_container_runtime
from rlbox.secrets.env_file import parse_env_with_problems
from rlbox.secrets.lookup import ENV_FILE, explain_secret_weakness
from rlbox.secrets.masks import SECRETS_VARIABLE, SecretMasker
from rlbox.system.identity import get_user_name_or_uid
from rlbox.target.target import load_target
from rlbox.values import Secret

LOCAL_FILE_OPTIONS = ("--project", "--data", "--env-file")
"""Options whose values are names of files here; what they say is sent along otherwise."""


def locate_run_store_or_run_remotely_and_exit(app: App, target: str, data_option: str | None) -> RunStore:
    """Return the data disk for a command that looks at what is there; `MachineError` where one was named that is not.

    With an engine on another machine the whole command is carried out there, and this does not return.
    """
    run_remotely_and_exit_if_engine_is_remote(app, target, data_option, {})
    run_store = resolve_local_run_store(app, target, data_option)
    if (data_option or os.environ.get("RLBOX_DATA")) and not run_store.data_dir.is_dir():
        raise MachineError(
            _("there is no such data disk"),
            where=str(run_store.data_dir),
            next_step=_("pass the folder that contains runs/: --data DIR"),
        )
    return run_store


def resolve_local_run_store(app: App, target: str, data_option: str | None) -> RunStore:
    return RunStore(data_dir=resolve_data_dir_or_default(app, target, data_option), open_runtime=open_container_runtime)


def resolve_data_dir_or_default(app: App, target: str, data_option: str | None) -> Path:
    return resolve_data_dir_outside_system_dirs(load_target(app.project, target).target.disk.host, data_option)


def create_own_lock_owner(action: str) -> LockOwner:
    return LockOwner(
        what=action, user=get_user_name_or_uid(), uid=os.getuid(), host=socket.gethostname(), since=utc_now()
    )


def clean_up_dead_runs(app: App, run_store: RunStore) -> RunsNotReconciled:
    found = run_store.clean_up_dead_runs_unless_run_holds_disk(create_own_lock_owner("the ends of runs"))
    for run, why in found.unresolved.items():
        app.print_status(_("run {run_id} {why}").format(run_id=run, why=why))
    return found


def load_environ_and_dotenv_masker_of_run(app: App, run_dir: Path) -> SecretMasker:
    try:
        named = load_plan_file(run_dir).secrets
    except RlboxError:
        named = ()
    return load_environ_and_dotenv_masker(app, named, {})


def load_environ_and_dotenv_masker(
    app: App, secret_names: Sequence[str], secrets: Mapping[str, Secret]
) -> SecretMasker:
    """Return masks for what the environment and `.env` say now, for `secret_names`, and for `secrets`."""
    values: dict[str, str] = {}
    with contextlib.suppress(OSError):  # most projects have none
        values = dict(parse_env_with_problems((app.project.folder / ENV_FILE).read_bytes()).values)
    # A weak value would be masked wherever ordinary text says the same.
    strong = (name for name, value in values.items() if not explain_secret_weakness(value))
    names = ",".join((*secret_names, *secrets, *strong, os.environ.get(SECRETS_VARIABLE, "")))
    given = {name: secret.reveal() for name, secret in secrets.items()}
    return SecretMasker({**values, **os.environ, **given, SECRETS_VARIABLE: names})


def run_remotely_and_exit_if_engine_is_remote(
    app: App, target: str, data_option: str | None, secrets_to_send: Mapping[str, Secret]
) -> None:
    """Return when the engine is on this machine; else carry the whole command line out beside it, and exit.

    There it runs in a container of the target's image.
    """
    if is_engine_on_unix_socket():
        return
    if not find_engine_url().startswith("ssh://"):
        raise EngineError(
            _("runs need an engine on this machine, or one that is reached over ssh"),
            where=find_engine_url(),
            next_step="DOCKER_HOST=ssh://USER@HOST",
        )
    if app.dry_run:
        raise EngineUnavailable(
            _("the engine is at {engine_place}, where a dry run starts nothing").format(engine_place=find_engine_url())
        )
    from rlbox.engine.connection import require_image
    from rlbox.engine.remote_helper import HelperContainerSpec, run_helper_and_fetch_files
    from rlbox.image.names import PROJECT_NAME_VARIABLE, parse_image_tag_or_empty
    from rlbox.ssh.tunnel import open_engine_tunnel

    tunnel = open_engine_tunnel(find_engine_url())
    image = load_image_plan(app.project, target)
    require_image(image.tag, image.target)
    named = data_option or os.environ.get("RLBOX_DATA")
    folder = named or image.container.disk_host_dir
    folder = f"{tunnel.remote_home}{folder[1:]}" if folder.startswith("~") else folder
    if not folder.startswith("/"):
        raise SpecError(
            _("with a remote engine, pass the absolute path of the data disk on that host"),
            where=folder or "disk.host",
            next_step="--data /PATH/ON/THE/REMOTE/HOST",
        )
    env = {"RLBOX_DATA": folder, PROJECT_NAME_VARIABLE: parse_image_tag_or_empty(image.tag)[1]}
    helper = HelperContainerSpec(
        target=target,
        image=image.tag,
        data_dir=folder,
        create_data_dir=image.container.creates_disk_dir and not named,
        rlbox_args=drop_options_and_their_values(click.get_current_context().find_root().obj, LOCAL_FILE_OPTIONS),
        env=env | {name: secret.reveal() for name, secret in secrets_to_send.items()},
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
    )
    raise click.exceptions.Exit(run_helper_and_fetch_files(tunnel, app.project, helper))


def drop_options_and_their_values(args: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    left, rest = [], iter(args)
    for word in rest:
        if word in options:
            next(rest, None)
        elif not any(word.startswith(f"{option}=") for option in options):
            left.append(word)
    return tuple(left)
