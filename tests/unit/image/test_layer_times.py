"""Size and time of the layers of an image that was just built."""

from __future__ import annotations

from rlbox.image.buildkit import BuildStep
from rlbox.image.image_info import ImageLayer, compute_layer_times, format_layer_times

LAYERS = [
    ImageLayer(part="os", size=500_000_000, command="ADD rootfs.tar /"),
    ImageLayer(part="torch.torch", size=1_800_000_000, command="COPY /out/torch.torch/ /"),
    ImageLayer(part="torch.triton", size=600_000_000, command="COPY /out/torch.triton/ /"),
    ImageLayer(part="torch", size=90_000_000, command="COPY /out/torch/ /"),
    ImageLayer(part="fixes", size=450_600, command="COPY /out/ /"),
    ImageLayer(part="", size=10, command="COPY lock/1/ /"),
]
STEPS = [
    BuildStep(number=1, name="[rlbox.os 1/1] ADD rootfs.tar /", state="cached"),
    BuildStep(number=2, name="[torch.large 1/2] COPY x /opt/tools/", state="done", seconds=1.5),
    BuildStep(number=3, name="[torch.large 2/2] RUN sh install.sh", state="done", seconds=180.0),
    BuildStep(number=4, name="[rlbox.fixes 2/2] RUN chmod", state="done", seconds=0.8),
    BuildStep(number=5, name="[stage-9  2/9] COPY --link --from=rlbox.fixes /out/ /", state="done", seconds=9.0),
    BuildStep(
        number=6, name="[stage-9  3/9] COPY --link --from=torch.large /out/torch.torch/ /", state="done", seconds=9.0
    ),
    BuildStep(number=7, name="[stage-9  4/9] COPY --from=torch.large /out/torch.triton/ /", state="done", seconds=9.0),
    BuildStep(number=8, name="[stage-9  5/9] COPY --link --from=torch /out/torch/ /", state="cached"),
    BuildStep(number=9, name="exporting to image", state="done", seconds=99.0),
    BuildStep(number=10, name="[torch 2/2] RUN sh install.sh", state="running"),
]


def test_each_layer_has_the_steps_of_its_stage() -> None:
    rows = compute_layer_times(LAYERS, STEPS)
    assert [(row.part, row.seconds) for row in rows] == [
        ("os", None), ("torch.torch", 181.5), ("torch.triton", 181.5), ("torch", None), ("fixes", 0.8),
        ("COPY lock/1/ /", None),
    ]  # fmt: skip


def test_the_table_ends_with_the_sum() -> None:
    assert format_layer_times(compute_layer_times(LAYERS, STEPS)).splitlines() == [
        " 500.0 MB       cache  os",
        "   1.8 GB  3 min 01 s  torch.torch",
        " 600.0 MB  3 min 01 s  torch.triton",
        "  90.0 MB       cache  torch",
        " 450.6 kB       0.8 s  fixes",
        "     10 B       cache  COPY lock/1/ /",
        "   3.0 GB              in all, unpacked",
    ]
