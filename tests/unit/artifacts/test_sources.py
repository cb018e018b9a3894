"""Where packages come from: pip's settings as probed, and what a resolver and a build step are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlbox.artifacts.mirrors import (
    PipUvEnvAndLocalWheels,
    plan_pip_uv_env_and_local_wheels,
    select_listed_wheel_paths_of_group,
)
from rlbox.artifacts.profile import MirrorRule, Profile
from rlbox.system.network_settings import NetworkSettings, read_pip_and_proxy_settings
from rlbox.target.artifact import TorchWheelGroup

CPU = TorchWheelGroup(packages=("torch==2.13.0",), channel="cpu")
WHEEL = "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
INDEX = "https://download.pytorch.org/whl/cpu"
BEST = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
FROM_PYTORCH = {"UV_INDEX": INDEX, **BEST}
FROM_MIRROR = {"UV_DEFAULT_INDEX": "https://mirror/simple", "PIP_INDEX_URL": "https://mirror/simple"}
BOTH = TorchWheelGroup(packages=("torch==2.13.0", "torchvision==0.28.0"), channel="cpu")


@pytest.mark.parametrize(
    ("groups", "site", "env", "wheels"),
    [
        ([], {}, {}, ()),
        ([CPU], {}, FROM_PYTORCH, ()),
        ([CPU], {"wheels_by_find_links_folder": {"/w": (WHEEL,)}}, {}, (f"/w/{WHEEL}",)),
        (
            [CPU],
            {"wheels_by_find_links_folder": {"/w": ("torch-2.12.0+cpu-x.whl", "torch-2.13.0+cu128-x.whl")}},
            FROM_PYTORCH,
            (),
        ),
        ([CPU], {"index_url": "https://mirror/simple"}, {**FROM_MIRROR, **FROM_PYTORCH}, ()),
        ([], {"extra_index_urls": ("file:///opt/index", "https://e")}, {"UV_INDEX": "https://e", **BEST}, ()),
        ([], {"extra_index_urls": ("file:///opt/index",)}, {}, ()),
        # one of two packages lies here: the other must still be found
        ([BOTH], {"wheels_by_find_links_folder": {"/w": (WHEEL,)}}, FROM_PYTORCH, (f"/w/{WHEEL}",)),
        # two groups of one channel: the index is named once, a wheel of both once
        ([CPU, TorchWheelGroup(packages=("x==1",), channel="cpu")], {}, FROM_PYTORCH, ()),
        ([CPU, CPU], {"wheels_by_find_links_folder": {"/w": (WHEEL,)}}, {}, (f"/w/{WHEEL}",)),
    ],
)
def test_plan_sources(
    groups: list[TorchWheelGroup], site: dict[str, Any], env: dict[str, str], wheels: tuple[str, ...]
) -> None:
    found = plan_pip_uv_env_and_local_wheels(groups, NetworkSettings(**site), Profile(name="direct", title=""))
    assert found == PipUvEnvAndLocalWheels(env=env, local_wheel_paths=wheels)


def mirror(kind: str, protocol: str, url: str) -> MirrorRule:
    return MirrorRule.model_validate({"kind": kind, "protocol": protocol, "url": url})


@pytest.mark.parametrize(
    ("rule", "site", "env"),
    [
        (
            mirror("python", "index", "https://mirror/simple/"),
            NetworkSettings(index_url="https://mine/simple"),
            {**FROM_MIRROR, **FROM_PYTORCH},
        ),
        (
            mirror("python", "flat", "https://m/w/"),
            NetworkSettings(),
            {"UV_FIND_LINKS": "https://m/w/", **FROM_PYTORCH},
        ),
        (
            mirror("torch-wheels", "index", "https://m/whl"),
            NetworkSettings(),
            {"UV_INDEX": "https://m/whl/cpu", **BEST},
        ),
        (mirror("torch-wheels", "flat", "https://m/whl"), NetworkSettings(), {"UV_FIND_LINKS": "https://m/whl/cpu/"}),
        (
            mirror("torch-wheels", "flat", "https://m/whl"),
            NetworkSettings(wheels_by_find_links_folder={"/w": (WHEEL,)}),
            {},
        ),
        (mirror("torch-wheels", "direct", ""), NetworkSettings(), FROM_PYTORCH),
    ],
)
def test_a_chosen_mirror(rule: MirrorRule, site: NetworkSettings, env: dict[str, str]) -> None:
    assert plan_pip_uv_env_and_local_wheels([CPU], site, Profile(name="mine", title="", rule=(rule,))).env == env


def test_flat_pages_are_parted_by_commas() -> None:
    """uv reads UV_INDEX by spaces and UV_FIND_LINKS by commas."""
    profile = Profile(name="mine", title="", rule=(mirror("torch-wheels", "flat", "https://m/whl"),))
    other = TorchWheelGroup(packages=("torch==2.9.0",), channel="cu128")
    assert plan_pip_uv_env_and_local_wheels([CPU, other], NetworkSettings(), profile).env == {
        "UV_FIND_LINKS": "https://m/whl/cpu/,https://m/whl/cu128/"
    }


def test_local_wheels_by_name() -> None:
    site = NetworkSettings(
        wheels_by_find_links_folder={
            "/b": ("torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl", "torch-2.13.0%2bcpu-cp312-x.whl"),
            "/a": (WHEEL, "torchaudio-2.13.0+cpu-x.whl", "torch-2.13.0-x.whl", "torch-2.13.0.1+cpu-x.whl"),
        }
    )
    assert select_listed_wheel_paths_of_group(CPU, site) == (
        f"/a/{WHEEL}",
        "/b/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl",
        "/b/torch-2.13.0%2bcpu-cp312-x.whl",
    )
    dashed = TorchWheelGroup(packages=("flash-attn==1.0",), channel="cu128")
    assert select_listed_wheel_paths_of_group(
        dashed, NetworkSettings(wheels_by_find_links_folder={"/a": ("flash_attn-1.0+cu128-x.whl",)})
    ) == ("/a/flash_attn-1.0+cu128-x.whl",)


def pip_conf(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_files_and_environment_in_pips_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = pip_conf(tmp_path / "etc/pip.conf", "[global]\nindex-url = https://system\nextra-index-url = https://e1\n")
    monkeypatch.setattr("rlbox.system.network_settings.SYSTEM_FILE", system)
    environ = {"HOME": str(tmp_path)}
    assert read_pip_and_proxy_settings(environ) == NetworkSettings(
        index_url="https://system", extra_index_urls=("https://e1",)
    )
    pip_conf(
        tmp_path / ".config/pip/pip.conf", "[global]\nindex-url = https://user\n[install]\nfind-links = /nowhere\n"
    )
    assert read_pip_and_proxy_settings(environ) == NetworkSettings(
        index_url="https://user", extra_index_urls=("https://e1",)
    )
    named = pip_conf(tmp_path / "named.conf", "[global]\nextra-index-url =\n  https://e2\n  https://e3\n")
    environ["PIP_CONFIG_FILE"] = str(named)
    assert read_pip_and_proxy_settings(environ).extra_index_urls == ("https://e2", "https://e3")
    environ |= {"PIP_INDEX_URL": "https://env", "PIP_EXTRA_INDEX_URL": "https://e4"}
    assert read_pip_and_proxy_settings(environ) == NetworkSettings(
        index_url="https://env", extra_index_urls=("https://e4",)
    )
    assert read_pip_and_proxy_settings({**environ, "UV_DEFAULT_INDEX": "https://uv"}).index_url == "https://uv"


def test_folders_of_wheels(tmp_path: Path) -> None:
    for name in (WHEEL, "b.whl", "notes.txt"):
        pip_conf(tmp_path / "wheels" / name, "")
    found = read_pip_and_proxy_settings(
        {"HOME": str(tmp_path), "PIP_FIND_LINKS": f"~/nothing {tmp_path}/wheels"}
    ).wheels_by_find_links_folder
    assert found == {f"{tmp_path}/wheels": ("b.whl", WHEEL)}


def test_certificates_and_proxies(tmp_path: Path) -> None:
    bundle = pip_conf(tmp_path / "ca.crt", "x")
    other = pip_conf(tmp_path / "other.crt", "x")
    environ = {"HOME": str(tmp_path), "https_proxy": "http://p:3128", "NO_PROXY": "localhost", "HTTP_PROXY": ""}
    assert read_pip_and_proxy_settings(environ) == NetworkSettings(
        proxy_env={"https_proxy": "http://p:3128", "NO_PROXY": "localhost"}
    )
    pip_conf(tmp_path / ".pip/pip.conf", f"[global]\ncert = {bundle}\n")
    assert read_pip_and_proxy_settings(environ).ca_bundle == str(bundle)
    assert read_pip_and_proxy_settings({**environ, "SSL_CERT_FILE": "/no/such/file"}).ca_bundle == str(bundle)
    assert read_pip_and_proxy_settings({**environ, "SSL_CERT_FILE": str(other)}).ca_bundle == str(other)
    assert read_pip_and_proxy_settings(
        {**environ, "SSL_CERT_FILE": str(bundle), "RLBOX_CA_BUNDLE": str(other)}
    ).ca_bundle == str(other)
