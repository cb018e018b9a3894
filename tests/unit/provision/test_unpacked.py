"""An unpacked base image: what of it has to lead into its tree, and which machine can run it."""

from __future__ import annotations

import pytest

from rlbox.errors import NodeError
from rlbox.provision.unpacked import (
    BaseNote,
    Library,
    base_environment,
    check_machine,
    image_libraries,
    moved_paths,
    shown_libraries,
)

IN_THE_IMAGE = {
    "/srv/Megatron-LM",
    "/sgl-workspace/sglang/python",
    "/usr/bin",
    "/usr/bin/python3",
    "/usr/local/cuda",
    "/usr/local/cuda/bin",
    "/usr/local/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/src/a+b~c@1",
}


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("/srv/Megatron-LM\n", "/b/image/srv/Megatron-LM\n"),
        (
            "MAPPING = {'sglang': '/sgl-workspace/sglang/python'}",
            "MAPPING = {'sglang': '/b/image/sgl-workspace/sglang/python'}",
        ),
        ("#!/usr/bin/python3 -E\n", "#!/b/image/usr/bin/python3 -E\n"),
        ("home = /usr/bin\n", "home = /b/image/usr/bin\n"),
        ("/src/a+b~c@1", "/b/image/src/a+b~c@1"),
        ("/b/image/srv/Megatron-LM\n", "/b/image/srv/Megatron-LM\n"),
        ("#!/usr/bin/env python3\n", "#!/usr/bin/env python3\n"),
        ("see https://example.org/srv/Megatron-LM", "see https://example.org/srv/Megatron-LM"),
        ("./srv/Megatron-LM and ../usr/bin", "./srv/Megatron-LM and ../usr/bin"),
        ("/srv/Megatron-LM-2", "/srv/Megatron-LM-2"),
    ],
)
def test_a_text_leads_to_what_the_image_has(text: str, moved: str) -> None:
    assert moved_paths(text, "/b/image", IN_THE_IMAGE.__contains__) == moved


def environment(*env: str) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    found = base_environment(BaseNote(image="x", env=env), "/b", IN_THE_IMAGE.__contains__)
    return dict(found.exports), dict(found.fronts)


def test_the_environment_leads_into_the_tree() -> None:
    assert environment(
        "PATH=/usr/local/cuda/bin:/usr/local/nvidia/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/lib/x86_64-linux-gnu:",
        "PYTHONPATH=/srv/Megatron-LM:relative",
        "CUDA_HOME=/usr/local/cuda",
        "CUDA_CACHE_PATH=/nowhere",
        "MIRROR=https://mirror.example/simple",
        "NCCL_DEBUG=WARN",
        "EMPTY=",
    ) == (
        {
            "CUDA_HOME": "/b/image/usr/local/cuda",
            "MIRROR": "https://mirror.example/simple",
            "NCCL_DEBUG": "WARN",
            "EMPTY": "",
        },
        {
            "PATH": ("/b/image/usr/local/cuda/bin",),
            "LD_LIBRARY_PATH": ("/b/image/usr/local/cuda/lib64", "/b/lib"),
            "CPATH": ("/b/include",),
            "PYTHONPATH": ("/b/image/srv/Megatron-LM",),
        },
    )


def test_what_is_the_machines_or_the_users_stays_so() -> None:
    names = ("HOME", "USER", "HTTPS_PROXY", "NVIDIA_VISIBLE_DEVICES", "SSL_CERT_FILE", "RLBOX_DATA", "DEBIAN_FRONTEND")
    assert environment(*(f"{name}=/of/the/image" for name in names)) == (
        {},
        {"LD_LIBRARY_PATH": ("/b/lib",), "CPATH": ("/b/include",)},
    )


def test_it_comes_before_what_is_there() -> None:
    made = base_environment(
        BaseNote(image="x", env=("PATH=/usr/local/cuda/bin", "A=1")), "/b", IN_THE_IMAGE.__contains__
    )
    assert made.onto({"PATH": "/bin", "A": "0", "B": "2"}) == {
        "PATH": "/b/image/usr/local/cuda/bin:/bin",
        "LD_LIBRARY_PATH": "/b/lib",
        "CPATH": "/b/include",
        "A": "1",
        "B": "2",
    }


def test_what_the_loader_is_shown() -> None:
    """Neither its own libraries nor the driver's, nor what packages bring; of the distribution only what is missing."""
    system = "/usr/lib/x86_64-linux-gnu"
    folders = {
        "/usr/local/cuda/lib64": ("libcublas.so.12", "libcudart.so.12", "readme.txt"),
        system: (
            *(
                "libc.so.6",
                "libm-2.31.so",
                "ld-2.31.so",
                "ld-linux-x86-64.so.2",
                "libnss_files.so.2",
                "libpthread.so.0",
            ),
            *("libcuda.so.1", "libnvidia-ml.so.570.1", "libGLX_nvidia.so.0"),
            *("libcudnn.so.9", "libssl.so.1.1", "libz.so.1", "libcudart.so.12", "libcrypt.so.1", "libcupti.so"),
        ),
    }
    found = image_libraries(folders, {"libcudnn.so.9"})
    assert found == {
        "libcublas.so.12": Library(path="/usr/local/cuda/lib64/libcublas.so.12", added=True),
        "libcudart.so.12": Library(path="/usr/local/cuda/lib64/libcudart.so.12", added=True),
        "libssl.so.1.1": Library(path=f"{system}/libssl.so.1.1"),
        "libz.so.1": Library(path=f"{system}/libz.so.1"),
        "libcrypt.so.1": Library(path=f"{system}/libcrypt.so.1"),
        "libcupti.so": Library(path=f"{system}/libcupti.so"),
    }
    shown = dict(shown_libraries(found, {"libz.so.1", "libcublas.so.12", "libcrypt.so.1"}))
    assert set(shown) == {"libcublas.so.12", "libcudart.so.12", "libssl.so.1.1", "libcupti.so"}


@pytest.mark.parametrize(
    ("platform", "processor", "libc"),
    [
        ("x86_64-manylinux_2_35", "x86_64", "glibc 2.35"),
        ("x86_64-manylinux_2_9", "x86_64", "glibc 2.35"),
        ("x86_64-unknown-linux-gnu", "x86_64", "glibc 2.31"),
        ("aarch64-manylinux_2_28", "aarch64", "glibc 2.39"),
    ],
)
def test_a_machine_that_is_as_new_runs_it(platform: str, processor: str, libc: str) -> None:
    check_machine("held", platform, processor, libc)


@pytest.mark.parametrize(
    ("platform", "processor", "libc", "says"),
    [
        (
            "x86_64-manylinux_2_35",
            "x86_64",
            "glibc 2.31",
            "glibc 2.35 or newer, and this machine is x86_64 with glibc 2.31",
        ),
        ("x86_64-manylinux_2_35", "x86_64", "glibc 2.9", "glibc 2.9"),
        ("x86_64-manylinux_2_35", "x86_64", "", "this machine is x86_64 with another C library"),
        ("x86_64-manylinux_2_28", "aarch64", "glibc 2.35", "it is for x86_64 with glibc 2.28"),
    ],
)
def test_another_machine_is_refused_before_anything_is_fetched(
    platform: str, processor: str, libc: str, says: str
) -> None:
    with pytest.raises(NodeError, match="the base image of target held cannot be unpacked here") as caught:
        check_machine("held", platform, processor, libc)
    assert says in caught.value.what
