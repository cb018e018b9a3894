"""Run by the stack's own interpreter: ask Ray for its nodes or jobs, or be one rank of an all-reduce.

Argument: the request as JSON; it prints a line of JSON. `call` nodes asks the GCS at the address `gcs` and joins
nothing; list, wait, submit and stop ask the jobs API at the dashboard's `port`, with the token that the environment
names. Of reduce, rank 0 listens at `host`; all numbers are whole, so that each sum is exact, and a single wrong bit of
it is seen.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import socket
import statistics
import sys
import time
from datetime import timedelta
from typing import Any

_LIMIT_S = {"nodes": 30, "reduce": 180}
_JOBS_LIMIT_S = 300
_LISTENS_S, _WAIT_S, _POLL_S = 5, 20.0, 1.0
_GPU_FLOATS, _CPU_FLOATS = 1 << 26, 1 << 22
_ROUNDS = 5


def _list_nodes(call: str, gcs: str) -> dict[str, Any]:
    """Return the nodes; the words are the same from Ray 2.43 to 2.60.

    Ray is imported once the GCS listens: until then the import would keep its start waiting.
    """
    host, _, port = gcs.rpartition(":")
    socket.create_connection((host, int(port)), _LISTENS_S).close()
    raylet: Any = importlib.import_module("ray._raylet")
    state = importlib.import_module("ray._private.state").GlobalState()
    options = raylet.GcsClientOptions.create(gcs, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    state._initialize_global_state(options)
    free = state.available_resources_per_node()
    rows = [
        {
            "id": node.get("NodeID", ""),
            "name": node.get("NodeName", ""),
            "alive": bool(node.get("Alive")),
            "total": node.get("Resources") or {},
            "free": free.get(node.get("NodeID"), {}),
            "death_reason": node.get("DeathReasonMessage", ""),
        }
        for node in state.node_table()
    ]
    return {"nodes": rows}


def _ask_jobs_api(call: str, port: int, id: str = "", entrypoint: str = "", working_dir: str = "") -> dict[str, Any]:
    """Return the jobs that were submitted, the oldest first; `wait` waits a while until the job has ended."""
    os.environ["no_proxy"] = "127.0.0.1"
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"  # what goes along was chosen before
    client = importlib.import_module("ray.job_submission").JobSubmissionClient(f"http://127.0.0.1:{port}")
    if call == "submit":
        try:
            environment = {"working_dir": working_dir} if working_dir else {}
            client.submit_job(entrypoint=entrypoint, submission_id=id, runtime_env=environment)
        finally:
            shutil.rmtree(working_dir, ignore_errors=True)  # Ray has packed it
    elif call == "stop":
        client.stop_job(id)
    until = time.monotonic() + _WAIT_S
    while call == "wait" and time.monotonic() < until and not client.get_job_status(id).is_terminal():
        time.sleep(_POLL_S)
    jobs = sorted((job for job in client.list_jobs() if job.submission_id), key=lambda job: job.start_time or 0)
    rows = [
        {
            "id": job.submission_id,
            "status": str(job.status.value),
            "exit_code": job.driver_exit_code,
            "message": job.message or "",
            "entrypoint": job.entrypoint or "",
            "ray_job_id": job.job_id or "",
        }
        for job in jobs
    ]
    return {"jobs": rows}


def _all_reduce(call: str, rank: int, world: int, device: str, host: str, port: int) -> dict[str, Any]:
    """Return how fast it was (`bytes_s`), and how many sums were `wrong`."""
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    gpu = device != "cpu"
    if gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if gpu else "gloo",
        init_method=f"tcp://{host}:{port}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=_LIMIT_S[call]),
    )
    size = _GPU_FLOATS if gpu else _CPU_FLOATS
    own = (torch.arange(size, device=device) % 251).to(torch.float32)
    right = own * world + world * (world - 1) // 2
    spans, wrong = [], 0
    for _ in range(_ROUNDS + 2):
        given = own + rank
        distributed.barrier()
        if gpu:
            torch.cuda.synchronize(device)
        began = time.monotonic()
        distributed.all_reduce(given)
        if gpu:
            torch.cuda.synchronize(device)
        spans.append(time.monotonic() - began)
        wrong += int((given != right).sum())
    distributed.barrier()
    distributed.destroy_process_group()
    moved = size * 4 * 2 * (world - 1) / world
    return {"bytes_s": moved / statistics.median(spans[2:]), "wrong": wrong}


def _main() -> None:
    sys.path = [path for path in sys.path if path]
    request = json.loads(sys.argv[1])
    call = request["call"]
    # a call to a GCS that is halted never returns, and a collective waits for its peer for ever, deaf to exceptions
    signal.alarm(_LIMIT_S.get(call, _JOBS_LIMIT_S))
    try:
        functions: dict[str, Any] = {"nodes": _list_nodes, "reduce": _all_reduce}
        row = functions.get(call, _ask_jobs_api)(**request)
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {error}"[:300]}
    sys.stdout.write("\n" + json.dumps(row) + "\n")


if __name__ == "__main__":
    _main()
