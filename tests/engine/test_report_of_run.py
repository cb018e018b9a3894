"""What a run in a container leaves to be seen: its resources, a service that two stages share, its report."""

from __future__ import annotations

import json

from enginebox import Box

JOB = """
title = "two stages, one server"
target = "tiny"
[ports]
web = 21741
[[services]]
name = "web"
title = "a file server"
command = ["{python}", "-m", "http.server", "--bind", "127.0.0.1", "{port.web}"]
ports = ["web"]
keep = true
ready = { url = "http://127.0.0.1:{port.web}/", port = "web", line = "GET / " }
[[stages]]
name = "first"
title = "trains"
services = ["web"]
command = ["sh", "-c", "for n in 1 2 3; do echo step $n of 3 loss 0.$n; sleep 0.3; done"]
limits = { total_s = 60, silence_s = 30 }
[[stages]]
name = "second"
title = "trains on"
services = ["web"]
command = ["sh", "-c", "echo step 4 loss 0.4; sleep 1"]
limits = { total_s = 60, silence_s = 30 }
"""


def test_a_run_in_a_container_can_be_looked_at(tiny: Box) -> None:
    tiny.job("two", JOB)
    result = tiny("run", "two")
    assert result.code == 0, result.err
    run = tiny.runs()[-1]
    services = [stage["services"][0]["state"] for stage in tiny.state()["stages"]]
    assert services == ["kept", "stopped"]
    rows = [json.loads(line) for line in (run / "resources.jsonl").read_text().splitlines()]
    assert any(row["parts"].get("web", {}).get("resident_bytes", 0) > 1 << 20 for row in rows)
    assert {"first", "second"} <= {row["stage"] for row in rows}
    page = run.with_name("report.html")
    said = tiny("report", "--target", "tiny", "--out", str(page))
    assert (said.code, said.err) == (0, "")
    html = page.read_text()
    assert f"{run.name} <span" in html
    assert 'data-name="loss"' in html
    assert 'data-name="web"' in html
