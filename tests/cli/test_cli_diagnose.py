"""`rlbox diagnose`: logs, folders, archives and runs, in both languages; what it refuses, and the way out."""

from __future__ import annotations

import gzip
import io
import lzma
import os
from pathlib import Path

import pytest
from fakes import Folder, Rlbox
from following import Follow
from test_cli_bundle import run

from rlbox.system.compression import zstd

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
FAILED = f"""step 1 loss 1.0
(TaskRunner pid=12) Traceback (most recent call last):
(TaskRunner pid=12)   File "/opt/train.py", line 3, in main
(TaskRunner pid=12) {OOM}
ray.exceptions.RayTaskError(OutOfMemoryError): CUDA out of memory
"""
WENT_ON = (
    "step 1 loss 1.0\nConnectionError: the tracker is away\nstep 2 loss 0.9\nstep 3 loss 0.8\nTraining completed\n"
)
KEYS = {
    "schema", "fatal", "cause", "fix", "title", "confidence", "ending", "stalled", "first_fatal", "chain", "also",
    "benign", "remedy", "fetch", "node", "rank", "files", "placed", "signatures",
}  # fmt: skip
PACK = """title = "the reward model is missing"
heals = ["reward-model-missing"]
remedy = "start the reward model first"
[[signature]]
pattern = 'reward model .{1,40} is not there'
example = 'ValueError: reward model A is not there'
"""


@pytest.fixture(autouse=True)
def disk(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "disk"
    (path / "runs").mkdir(parents=True)
    monkeypatch.setenv("RLBOX_DATA", str(path))
    return path


def test_four_lines_then_the_chain_then_the_place(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("train.log", FAILED)
    said = rlbox("diagnose", "train.log")
    assert said.code == 1
    first, cause, after, step, _, *rest = said.out.splitlines()
    assert first == f"first: train.log:4, TaskRunner pid=12: (TaskRunner pid=12) {OOM}"
    assert cause.startswith("cause: gpu-oom-training: ")
    assert after.startswith("after: one consequence, in train.log: ray.exceptions.RayTaskError")
    assert step.startswith("next:  data.micro_batch_size_per_gpu=1 first")
    assert rest[1].endswith("[relayed, it repeats that line]")
    assert f">      4 (TaskRunner pid=12) {OOM}" in rest


def test_json_has_the_keys_that_are_promised(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("train.log", FAILED)
    said = rlbox("diagnose", "train.log", "--json")
    assert (said.code, set(said.data)) == (1, KEYS)
    assert (said.data["schema"], said.data["cause"], said.data["ending"]) == (1, "gpu-oom-training", "failed")
    text = f"(TaskRunner pid=12) {OOM}"
    assert said.data["first_fatal"] == {"line": 4, "text": text, "file": "train.log", "lane": "TaskRunner pid=12"}
    assert [(step["class"], step["line"], step["of"], step["why"]) for step in said.data["chain"]] == [
        ("root", 4, -1, ""),
        ("relayed", 5, 0, "quoted"),
    ]
    assert said.data["files"] == [{"file": "train.log", "lines": 5, "bytes": len(FAILED), "problem": ""}]


STEPS = "".join(f"2026-03-01 10:{minute:02}:00 INFO step: {minute} - loss: 1.5\n" for minute in range(20))
IDLE = "".join(f"INFO 03-01 {10 + at // 60}:{at % 60:02}:00 [monitor.py:9] gpu 0 %\n" for at in range(20, 90))


def test_steps_that_end_long_before_the_log_are_told_with_their_time(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("train.log", STEPS + IDLE)
    said = rlbox("diagnose", "train.log", "--json")
    assert (said.code, said.data["ending"]) == (0, "stalled")
    assert said.data["stalled"] == {
        "line": 20, "text": STEPS.splitlines()[-1], "file": "train.log", "at": "2026-03-01 10:19:00", "seconds": 4200,
    }  # fmt: skip
    assert "2026-03-01 10:19:00, 70 min before the last line: train.log:20: " in rlbox("diagnose", "train.log").out


@pytest.mark.parametrize(
    "log",
    [
        STEPS + IDLE[: len(IDLE) // 3],
        STEPS + IDLE + "2026-03-01 11:30:00 INFO saved checkpoint to /data/ckpt\n",
        "INFO 03-01 10:00:00 [loader.py:9] Loading: 100% 6/6 [00:04<00:00]\n" * 2 + IDLE,
    ],
    ids=["short", "saved-at-the-end", "idle-server"],
)
def test_no_stall_is_told(log: str, rlbox: Rlbox, folder: Folder) -> None:
    folder.write("train.log", log)
    said = rlbox("diagnose", "train.log", "--json")
    assert (said.code, said.data["stalled"]) == (0, None)


def test_what_went_on_is_no_failure(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("train.log", WENT_ON)
    said = rlbox("diagnose", "train.log", "--json")
    assert (said.code, said.data["fatal"], said.data["cause"], said.data["first_fatal"]) == (0, False, None, None)
    assert said.data["ending"] == "survived"
    assert [(one["line"], one["why"]) for one in said.data["benign"]] == [(2, "survived")]
    told = rlbox("diagnose", "train.log").out
    assert told.startswith("nothing fatal in 5 lines; there are errors, and the work went on after each of them\n")
    assert (
        "  no failure: train.log:2: ConnectionError: the tracker is away [1 times, the work went on after it]" in told
    )


def test_unknown_exception_names_the_package_code_that_raised_it(rlbox: Rlbox, folder: Folder) -> None:
    head = 'Traceback (most recent call last):\n  File "/data/job/train.py", line 9, in main\n    load()\n'
    inner = '  File "/opt/venv/lib/site-packages/pandas/core/x.py", line 3, in tz\n    raise ValueError(text)\n'
    folder.write("train.log", f"{head}{inner}ValueError: a banana fell down\n")
    said = rlbox("diagnose", "train.log", "--json")
    assert said.data["cause"] == "unknown"
    assert said.data["placed"] == {"package": "pandas", "where": "pandas/core/x.py: tz"}
    assert "\ncause: unknown: raised in pandas/core/x.py: tz; " in rlbox("diagnose", "train.log").out
    folder.write("train.log", f"{head}ValueError: a banana fell down\n")
    said = rlbox("diagnose", "train.log", "--json")
    assert (said.data["cause"], said.data["placed"]) == ("unknown", None)


@pytest.mark.parametrize(
    ("raising", "place"),
    [
        ("/data/slime/slime/backends/x.py", "slime/backends/x.py"),
        ("/work/sglang/python/sglang/srt/x.py", "sglang/srt/x.py"),
        ("/work/verl/verl/utils/vllm/x.py", "verl/utils/vllm/x.py"),
        ("/data/verl/examples/x.py", None),
        ("/data/verl/x.py", None),
    ],
)
def test_unknown_exception_of_a_checkout_names_its_code(
    rlbox: Rlbox, folder: Folder, raising: str, place: str | None
) -> None:
    client = '  File "/opt/venv/lib/python3.12/site-packages/httpx/_client.py", line 3, in send\n    raise x\n'
    head = f'Traceback (most recent call last):\n  File "{raising}", line 9, in load\n    send()\n'
    folder.write("train.log", f"{head}{client}ValueError: a banana fell down\n")
    told = rlbox("diagnose", "train.log").out
    if place:
        assert f"\ncause: unknown: raised in {place}: load; " in told
        assert f"\nnext:  search the issues of {place.partition('/')[0]} for this message, or try" in told
    else:
        assert "\ncause: unknown: no signature knows this line\n" in told


def test_packed_logs_and_standard_input(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.path / "a.log.gz").write_bytes(gzip.compress(FAILED.encode()))
    (folder.path / "b.log.zst").write_bytes(zstd.compress(FAILED.encode()))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(FAILED.encode())))
    for name in ("a.log.gz", "b.log.zst", "-"):
        said = rlbox("diagnose", name, "--json")
        first = said.data["first_fatal"]
        assert (said.code, first["file"], first["line"]) == (1, name, 4)


def test_folders_are_one_job(rlbox: Rlbox, folder: Folder) -> None:
    folder.write(
        "job/node-0/out.log", "2026-01-01 00:00:09 step 1 loss 1.0\n2026-01-01 00:00:20 ERROR gone: EOFError: x\n"
    )
    folder.write("job/node-1/err.log", f"2026-01-01 00:00:10 {OOM}\n")
    said = rlbox("diagnose", "job", "--json")
    assert (said.data["first_fatal"]["file"], said.data["node"]) == ("node-1/err.log", "node-1")
    said = rlbox("diagnose", "job/node-0", "job/node-1", "--json")
    assert said.data["first_fatal"]["file"] == "job/node-1/err.log"


def test_a_run_by_its_name_its_folder_or_as_the_last(rlbox: Rlbox, disk: Path) -> None:
    path = run(disk, log=FAILED)
    for words in (("smoke-1",), ("smoke",), (), (str(path),)):
        said = rlbox("diagnose", *words, "--json")
        assert (said.code, said.data["cause"]) == (1, "gpu-oom-training")
        assert said.data["first_fatal"]["file"] == "stages/1-train/stage.log"


def test_a_pack_of_signatures_of_another_team(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("pack/reward-model-missing.toml", PACK)
    folder.write("train.log", "ValueError: reward model B is not there\n")
    assert rlbox("diagnose", "train.log", "--json").data["cause"] == "unknown"
    said = rlbox("diagnose", "train.log", "--signatures", "pack", "--json")
    assert (said.data["cause"], said.data["remedy"]) == ("reward-model-missing", "start the reward model first")
    folder.write("train.log", f"{OOM}\n")
    assert rlbox("diagnose", "train.log", "--signatures", "pack", "--json").data["cause"] == "gpu-oom-training"


def test_a_pack_is_looked_at(rlbox: Rlbox, folder: Folder, follow: Follow) -> None:
    folder.write("train.log", "ValueError: reward model B is not there\n")
    (folder.path / "pack").mkdir()
    empty = follow("diagnose", "train.log", "--signatures", "pack")
    folder.write("pack/mine.toml", PACK.replace("reward model .{1,40} is not there", "(?=reward)"))
    follow.again(empty, code=2)
    wrong = follow("diagnose", "train.log", "--signatures", "pack")
    assert "look-ahead" in wrong.said.err
    folder.write("pack/mine.toml", "title = ")
    follow.again(wrong, code=2)
    torn = follow("diagnose", "train.log", "--signatures", "pack")
    folder.write("pack/mine.toml", PACK)
    follow.again(torn, code=1)


@pytest.mark.allow("processes")
def test_a_command_is_asked_with_what_may_be_shown(
    rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = (
        "hf_" + "a1" * 12,
        "planted-5ecret-value",
        "gpu-17.corp.example",
        "10.20.30.40",
        "jane@corp.example",
        "jane",
    )
    monkeypatch.setenv("WANDB_API_KEY", planted[1])
    lane = f"(TaskRunner pid=12, ip={planted[3]}) "
    lines = [
        f"login with {planted[0]}",
        f"key is {planted[1]}",
        f"connect to http://{planted[2]}:8000/v1 as {planted[4]}",
        f"{lane}Traceback (most recent call last):",
        f'{lane}  File "/data/users/{planted[5]}/train.py", line 3, in main',
        f'{lane}  File "/opt/{planted[5]}/lib/site-packages/torch/nn.py", line 9, in run',
        f"{lane}{OOM}",
    ]
    folder.write("train.log", "\n".join(lines) + "\n")
    plain = rlbox("diagnose", "train.log", "--json").data
    said = rlbox("diagnose", "train.log", "--ask", "tee asked.txt | wc -c")
    asked = (folder.path / "asked.txt").read_text()
    assert said.code == 1
    assert "guess of that command, and no part of the verdict:\n" in said.out
    assert int(said.out.split()[-1]) == len(asked.encode()) <= 8000
    assert [word for word in planted if word in asked] == []
    assert OOM in asked
    assert "site-packages/torch/nn.py" in asked
    told = rlbox("diagnose", "train.log", "--ask", "echo cosmic rays", "--json").data
    assert told == {**plain, "guess": "cosmic rays"}
    failed = rlbox("diagnose", "train.log", "--ask", "exit 3")
    assert (failed.code, "--ask has no answer" in failed.err) == (1, True)


PACKED = gzip.compress(b"step 1 loss 3\n" * 200)
DAMAGED = {
    "empty.log": (b"", "it is empty"),
    "blank.log": (b"\n \n", "it is empty"),
    "binary.log": (bytes(range(256)) * 40, "bytes are zero"),
    "lost-blocks.log": (b"step 1\n" + b"\0" * 4096 + b"\n", "4096 bytes are zero"),
    "cut.log.gz": (PACKED[:20], "ends early"),
    "wrong-sum.log.gz": (PACKED[:-6] + b"\0" * 6, "data is damaged"),
    "text.log.gz": (b"step 1\n", "holds no gzip data"),
    "text.zip": (b"step 1\n", "holds no zip data"),
    "utf-16.log": ("a\nRuntimeError: boom\n".encode("utf-16"), "bytes are zero"),
    "archive.log": (b"PK\x03\x04rest", "it is a zip archive"),
    "archive.7z": (b"7z\xbc\xaf\x27\x1c", "it is a 7z archive"),
    "cut-to-a-byte.log.gz": (PACKED[:1], "holds no gzip data"),
    "zeros.log": (bytes(70_000), "70000 bytes are zero"),
    "only-colours.log": (b"\x1b[31m\x1b[0m\r" * 90, "it is empty"),
    "cut.log.xz": (lzma.compress(b"step 1\n" * 900)[:40], "ends early"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_log_gets_no_verdict(name: str, rlbox: Rlbox, tmp_path: Path) -> None:
    content, words = DAMAGED[name]
    (tmp_path / name).write_bytes(content)
    said = rlbox("diagnose", str(tmp_path / name))
    assert said.code == 2
    assert words in said.out + said.err
    assert "nothing fatal" not in said.out


@pytest.mark.parametrize("failed", [True, False])
def test_folder_that_cannot_be_read_as_a_whole_is_said(failed: bool, rlbox: Rlbox, tmp_path: Path) -> None:
    """Root may read every file, so one that cannot be opened stands for those that the user may not read."""
    (tmp_path / "a.log").write_text("step 1\nRuntimeError: boom\n" if failed else "step 1\nTraining finished\n")
    os.mkfifo(tmp_path / "b.log")
    named = [str(tmp_path / name) for name in ("a.log", "b.log")]
    said = rlbox("diagnose", *named)
    assert said.code == (1 if failed else 2)
    assert "b.log: it cannot be read" in said.out
    assert ("RuntimeError: boom" in said.out) == failed
    assert rlbox("diagnose", str(tmp_path)).code == (1 if failed else 0)  # a pipe in a folder is no log


def test_link_to_nothing_is_named_as_such(rlbox: Rlbox, tmp_path: Path) -> None:
    (tmp_path / "a.log").symlink_to("gone.log")
    said = rlbox("diagnose", str(tmp_path / "a.log"))
    assert (said.code, "broken symbolic link" in said.err) == (2, True)


def test_last_state_of_a_line_without_end_is_read(rlbox: Rlbox, tmp_path: Path) -> None:
    lines = [*(f"step: {step} loss: 0.5" for step in range(9000)), "RuntimeError: boom", ""]
    (tmp_path / "a.log").write_bytes("\r".join(lines).encode())
    said = rlbox("diagnose", str(tmp_path / "a.log"))
    assert (said.code, "RuntimeError: boom" in said.out) == (1, True)


def test_log_is_read_in_the_form_that_it_has(rlbox: Rlbox, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(gzip.compress(b"a\nRuntimeError: boom\n"))
    said = rlbox("diagnose", str(tmp_path / "a.log"))
    assert said.code == 1
    assert "RuntimeError: boom" in said.out + said.err


def test_empty_log_beside_another_is_no_damage(rlbox: Rlbox, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/a.log").write_text("step 1\nstep 2\nTraining finished\n")
    (tmp_path / "logs/stderr.log").write_text("")
    assert rlbox("diagnose", str(tmp_path / "logs")).code == 0


def test_stray_zero_byte_does_not_damage_a_log(rlbox: Rlbox, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"step 1\n" * 200 + b"step 201\0\nTraining finished\n")
    assert rlbox("diagnose", str(tmp_path / "a.log")).code == 0
