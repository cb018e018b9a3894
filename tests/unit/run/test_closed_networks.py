"""A run whose Ray takes commands of strangers is refused, unless somebody says that it may be so."""

from __future__ import annotations

import dataclasses

import pytest
from fakes import ON_IMAGE, Folder, load_cases

from rlbox.app import App
from rlbox.errors import SpecError
from rlbox.job.job import load_job
from rlbox.job.params import resolve_params
from rlbox.job.plan import RunPlan
from rlbox.run.backend import RunOptions
from rlbox.run.exposure import drop_taken_published_ports_adding_notes, plan_and_print_exposure_or_refuse
from rlbox.run.inputs import plan_container_run

CASES = load_cases("run", "test_closed_networks")
JOB = CASES["JOB"]
ON_RAY = """
[stages.ray]
dashboard = "http://127.0.0.1:{port.dashboard}"
service = "ray"
temp_dir = "/tmp/ray"
"""
PUBLISHING = (
    (JOB + ON_RAY)
    .replace("dashboard = 8101", "dashboard = 8101\nclient = 8102")
    .replace('ports = ["dashboard"]', 'ports = ["dashboard", "client"]\npublish = ["dashboard"]')
)
OLD, NEW = "2.43.0", "2.60.0"
WHY = "Ray's tokens came with 2.52, and ray 2.43.0 is not >=2.52"
OPEN = f"open: {WHY}; anyone who can reach this machine's ports runs code in the run"
NO_BRIDGE = (
    "open: this engine has no bridge, so the run is on the network host, where others reach what it listens on; "
    "start the engine without `--bridge none` to close it"
)


def close(app: App, plan: RunPlan, network: str, *, opened: bool, publish: tuple[str, ...] = ()) -> RunPlan:
    """`close_plan` with the data disk of these tests."""
    options = RunOptions(place="docker", allow_unauthenticated=opened, publish=publish)
    return plan_and_print_exposure_or_refuse(app, plan, network, app.project.folder / "disk", options)


def planned(folder: Folder, ray: str, more: str = "", job: str = JOB + ON_RAY) -> tuple[App, RunPlan]:
    folder.target("mine", ON_IMAGE.replace("six==1.16.0", f"ray=={ray}") + more)
    folder.job("one", job)
    app = App(project=folder.project)
    one = load_job(app.project, "one")
    plan = plan_container_run(one, resolve_params(one, (), {}), "/data", "one-1", "docker", "mine")
    return app, dataclasses.replace(plan, container="rlbox-one-1")


@pytest.mark.parametrize(
    ("ray", "network", "opened", "notes"),
    [
        (OLD, "own", False, ()),
        (NEW, "own", False, ()),
        (NEW, "host", False, (NO_BRIDGE,)),
        (OLD, "host", True, (NO_BRIDGE, OPEN)),
    ],
)
def test_what_is_open_is_noted(folder: Folder, ray: str, network: str, opened: bool, notes: tuple[str, ...]) -> None:
    app, plan = planned(folder, ray)
    closed = close(app, plan, network, opened=opened)
    assert (closed.network, closed.open, closed.notes) == (network, opened, notes)
    assert close(app, closed, network, opened=False) == closed  # the next attempt


@pytest.mark.parametrize("container", ["rlbox-one-1", ""])
@pytest.mark.parametrize(
    ("ray", "more", "why"),
    [
        (OLD, "", WHY),
        (NEW, '[fixes.off]\nray-token = "ours"\n', "its target leaves out the fix ray-token"),
    ],
)
def test_an_open_head_is_refused(folder: Folder, ray: str, more: str, why: str, container: str) -> None:
    app, plan = planned(folder, ray, more)
    with pytest.raises(SpecError) as refused:
        close(app, dataclasses.replace(plan, container=container), "host", opened=False)
    assert refused.value.what == (
        f"job one would be open: {why}, so anyone who can reach this machine's ports runs code in it"
    )
    assert refused.value.next_step == (
        "rlbox run --allow-unauthenticated, on a network that only its nodes reach; it is recorded with the run"
    )


STARTS_RAY = JOB.replace('services = ["ray"]', "own_ray = true")
OFF = "RAY_AUTH_MODE=disabled of {} switches Ray's token off"


@pytest.mark.parametrize(
    ("ray", "job", "more", "why"),
    [
        (OLD, STARTS_RAY, "", WHY),
        (NEW, STARTS_RAY + 'env = { RAY_AUTH_MODE = "disabled" }\n', "", OFF.format("stage train")),
        (NEW, JOB + ON_RAY, '[env]\nRAY_AUTH_MODE = "disabled"\n', OFF.format("its target")),
        (NEW, JOB.replace('ports = ["dash', 'env = { RAY_AUTH_MODE = "disabled" }\nports = ["dash') + ON_RAY, "",
         OFF.format("service ray")),
    ],
)  # fmt: skip
def test_in_place_a_head_without_its_token_is_refused(folder: Folder, ray: str, job: str, more: str, why: str) -> None:
    """One that a stage starts itself, as verl does, no less; unless --allow-unauthenticated is typed."""
    app, plan = planned(folder, ray, more, job)
    here = dataclasses.replace(plan, container="", place="here")
    with pytest.raises(SpecError) as refused:
        close(app, here, "host", opened=False)
    assert f"job one would be open: {why}, so anyone" in refused.value.what
    opened = close(app, here, "host", opened=True)
    assert (opened.open, opened.notes) == (True, (OPEN.replace(WHY, why),))


def test_what_the_shell_says_of_rays_token_reaches_no_run(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    app, plan = planned(folder, NEW, "", STARTS_RAY)
    assert not close(app, dataclasses.replace(plan, container="", place="here"), "host", opened=False).open


def test_the_env_file_of_the_data_disk_may_switch_rays_token_off(folder: Folder) -> None:
    """Every container reads it at its start, before Ray does; a link in its place leads who knows where."""
    app, plan = planned(folder, NEW, "", STARTS_RAY)
    elsewhere = folder.write("other.env", "RAY_AUTH_MODE=disabled\n")
    file = folder.write("disk/.env", "export RAY_AUTH_MODE='disabled' # for a while\nnot a line\n")
    with pytest.raises(SpecError) as refused:
        close(app, plan, "host", opened=False)
    assert f"job one would be open: {OFF.format(file)}, so anyone" in refused.value.what
    file.write_text("RAY_AUTH_MODE=token\n")
    assert close(app, plan, "host", opened=False).open is False
    file.unlink()
    file.symlink_to(elsewhere)
    with pytest.raises(SpecError) as refused:
        close(app, plan, "host", opened=False)
    assert f"{file} cannot be read (" in refused.value.what


@pytest.mark.parametrize("name", ["holdem", "grpo", "gkd", "xdan"])
def test_shipped_jobs_are_refused_in_place_on_a_ray_without_tokens(folder: Folder, name: str) -> None:
    app, _ = planned(folder, OLD)
    job = load_job(app.project, name)
    plan = plan_container_run(job, resolve_params(job, (), {}), "/data", f"{name}-1", "here", "mine")
    with pytest.raises(SpecError) as refused:
        close(app, plan, "host", opened=False)
    assert refused.value.what.startswith(f"job {name} would be open: {WHY}")
    assert close(app, plan, "host", opened=True).notes == (OPEN,)


def test_with_its_token_a_run_in_place_is_closed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    app, plan = planned(folder, NEW, job=STARTS_RAY)
    assert close(app, dataclasses.replace(plan, container=""), "host", opened=False).notes == ()
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # a container does not get it
    assert close(app, dataclasses.replace(plan, container="rlbox-one-1"), "host", opened=False).open is False


def test_a_target_may_say_that_it_is_open(folder: Folder) -> None:
    app, plan = planned(folder, OLD, '[run]\nnetwork = "host"\nopen = true\n')
    assert close(app, plan, "host", opened=False).notes == (OPEN,)


def test_a_run_without_ray_needs_no_token(folder: Folder) -> None:
    app, plan = planned(folder, OLD, job=JOB)
    assert close(app, dataclasses.replace(plan, container=""), "host", opened=False).notes == ()


def test_several_nodes_are_on_the_hosts_network(folder: Folder) -> None:
    app, plan = planned(folder, NEW, "[hardware]\nnodes = 2\n")
    with pytest.raises(SpecError) as refused:
        close(app, plan, "host", opened=False)
    assert "run.network: must be 'host' for hardware.nodes = 2: nodes reach each other on it" in refused.value.what


@pytest.mark.parametrize(("network", "wanted", "published"), CASES["what_is_published"])
def test_what_is_published(folder: Folder, network: str, wanted: tuple[str, ...], published: dict[str, int]) -> None:
    app, plan = planned(folder, NEW, job=PUBLISHING)
    assert close(app, plan, network, opened=False, publish=wanted).published == published


def test_a_port_that_no_service_has(folder: Folder) -> None:
    app, plan = planned(folder, NEW, job=PUBLISHING)
    with pytest.raises(SpecError) as refused:
        close(app, plan, "own", opened=False, publish=("dashbord",))
    assert (
        str(refused.value) == "no service of job one has the port 'dashbord'\n  next:  choose one of: client, dashboard"
    )


def test_a_port_that_is_taken_is_not_published_until_the_next_attempt(folder: Folder) -> None:
    app, plan = planned(folder, NEW, job=PUBLISHING)
    closed = close(app, plan, "own", opened=False, publish=("client",))
    less = drop_taken_published_ports_adding_notes(closed, {8102})
    assert less.notes == ("not published: port client, for 127.0.0.1:8102 is taken on the engine's machine",)
    assert less.published == {"dashboard": 8101}
    again = close(app, less, "own", opened=False, publish=("client",))
    assert (again.published, again.notes) == (closed.published, ())


def test_a_service_publishes_its_own_ports_alone(folder: Folder) -> None:
    with pytest.raises(SpecError) as refused:
        planned(folder, NEW, job=PUBLISHING.replace('publish = ["dashboard"]', 'publish = ["reward"]'))
    assert "services.ray.publish: unknown port of the service 'reward'" in refused.value.what
