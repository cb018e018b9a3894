"""The ports of a target's jobs."""

from __future__ import annotations

import pytest
from fakes import Folder

from rlbox.errors import SpecError
from rlbox.job.job import load_target_ports_by_job_dot_port

JOB = 'title = "it listens"\ntarget = "{target}"\n[ports]\nhttp = {port}\n'


def test_they_are_those_of_its_own_jobs(folder: Folder) -> None:
    folder.job("one", JOB.format(target="mine", port=21431))
    folder.job("other", JOB.format(target="another", port=21432))
    assert load_target_ports_by_job_dot_port(folder.project, "mine") == {"one.http": 21431}


@pytest.mark.parametrize("port", ["80", "true", '"21431"', "70000"])
def test_what_is_none_is_refused(folder: Folder, port: str) -> None:
    folder.job("one", JOB.format(target="mine", port=port))
    with pytest.raises(SpecError, match=r"ports\.http"):
        load_target_ports_by_job_dot_port(folder.project, "mine")
