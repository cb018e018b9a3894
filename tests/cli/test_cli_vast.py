"""`rlbox vast` against a recorded account on loopback."""

from __future__ import annotations

import base64
import gzip
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fakes import Folder, Rlbox
from following import Follow
from vastbox import KEY, Platform, Unanswered, recorded, serving

pytestmark = pytest.mark.allow("sockets")
IMAGE = ("--image", "registry.example/me/vast-5090:1")


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with serving(Platform()) as served:
        monkeypatch.setenv("VAST_API_KEY", KEY)
        monkeypatch.setenv("VAST_URL", served.url)
        monkeypatch.setattr("rlbox.vast.api._POLL_S", 0.01)
        monkeypatch.setattr(
            "rlbox.fixes.catalogue.load_fix_catalogue", lambda project: ()
        )  # what they refuse is tried elsewhere
        monkeypatch.setattr("rlbox.vast.rental.require_published_or_report_unchecked", lambda app, image: None)
        yield served


def unpacked(script: str) -> str:
    """What an on-start script does, packed or plain."""
    packed = re.search(r"<<'END'.*?\n(.*?)\nEND", script, re.DOTALL)
    return gzip.decompress(base64.b64decode(packed[1])).decode() if packed and "base64 -d" in script else script


def own(platform: Platform, number: int, label: str) -> None:
    platform.instances[number] = {**recorded("instance"), "id": number, "label": label}


def test_the_cheapest_offer_that_fits_comes_first(rlbox: Rlbox, platform: Platform) -> None:
    said = rlbox("vast", "search", "vast-5090", "--json")
    assert said.code == 0, said.err
    # 4100003 is cheaper, but half of its 96 GB of memory is another tenant's
    assert [row["id"] for row in said.data["offers"]] == [4100002, 4100001]
    assert said.data["offers"][0]["ram"] == 257.0
    (query,) = platform.calls("POST")
    assert query["gpu_name"] == {"eq": "RTX 5090"}
    assert query["gpu_ram"] == {"gte": 31000.0}
    assert (query["allocated_storage"], query["rentable"], query["verified"]) == (350.0, {"eq": True}, {"eq": True})
    shown = rlbox("vast", "search", "vast-5090")
    assert shown.out.splitlines()[1].split()[:2] == ["4100002", "1.797"]
    assert shown.err == "next: rlbox vast create vast-5090 --offer 4100002 --image IMAGE\n"


def test_nothing_above_the_ceiling_is_offered(rlbox: Rlbox, platform: Platform, folder: Folder) -> None:
    platform.offers = [row for row in platform.offers if row["id"] == 4100004]
    folder.target("large", 'include = "vast-5090"\n[disk]\nneed_gib = 400\n')
    platform.offers[0]["dph_total"] = 2.45  # with the platform's disk; with 400 GB it is dearer
    said = rlbox("vast", "search", "large")
    assert said.code == 1
    assert "offer 4100004: $2.506 an hour, at most $2.5" in said.err


def test_create_says_the_price_then_sends_one_request(rlbox: Rlbox, platform: Platform, folder: Folder) -> None:
    folder.target("ported", 'include = "vast-5090"\n[vast]\noptions = "-p 8000:8000 -e A=\'x y\'"\n')
    said = rlbox("vast", "create", "ported", *IMAGE, "--yes")
    assert said.code == 0, said.err
    assert said.out == "14100002  ssh -p 31812 root@ssh4.vast.ai\n"
    assert "$1.797 an hour while it runs" in said.err
    assert "$0.097 an hour for the disk when it is stopped" in said.err
    (body,) = platform.calls("PUT")
    assert body["env"] == {"A": "x y", "-p 8000:8000": "1"}
    assert (body["disk"], body["label"], body["cancel_unavail"]) == (350.0, "rlbox-ported", True)
    assert (body["runtype"], body["image"]) == ("ssh_direc ssh_proxy", IMAGE[1])
    own, kept = unpacked(rlbox("onstart", "ported").out), unpacked(body["onstart"])
    assert own.partition("    [ ! -x $own/bin/rlbox ]")[0] in kept  # a step more stands before the doctor
    assert "-m rlbox.vast /workspace/.rlbox-up" in kept


def test_a_dry_run_rents_nothing(rlbox: Rlbox, platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    said = rlbox("vast", "create", "vast-5090", *IMAGE, "--dry-run", "--json")
    assert (said.code, said.data["created"], said.data["cost"]["hour"]) == (0, False, 1.7967)
    assert platform.calls("PUT") == []
    monkeypatch.delenv("VAST_API_KEY")
    before = len(platform.asked)
    said = rlbox("vast", "create", "vast-5090", *IMAGE, "--dry-run")
    assert said.code == 2
    assert said.out.splitlines()[-5:] == [
        "cost     at most $2.5 an hour (assumed: the ceiling)",
        "",
        "# refused: no API key of vast.ai is set",
        "#   next:  create a key at https://cloud.vast.ai/manage-keys/, then: export VAST_API_KEY=KEY",
        "# verdict: this would be refused: 1 refusal, exit code 2",
    ]
    assert len(platform.asked) == before


def test_nobody_is_there_to_say_yes(rlbox: Rlbox, platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", open("/dev/null"))  # noqa: SIM115
    own(platform, 20000001, "rlbox-vast-5090")
    for words in (("create", "vast-5090", *IMAGE), ("destroy", "20000001", "--unfetched")):
        said = rlbox("vast", *words)
        assert said.code == 2
        assert "there is no terminal to ask on: pass --yes to" in said.err
    assert platform.calls("PUT") + platform.calls("DELETE") == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "no image to pull"),
        ((*IMAGE, "--offer", "4100003"), "offer 4100003 is taken, or does not fit the target and its price limit"),
    ],
)
def test_what_is_not_rented(rlbox: Rlbox, platform: Platform, words: tuple[str, ...], told: str) -> None:
    said = rlbox("vast", "create", "vast-5090", *words, "--yes")
    assert said.code == (1 if "--offer" in words else 2)
    assert told in said.err
    assert platform.calls("PUT") == []


@pytest.mark.parametrize(
    ("states", "code", "told"),
    [
        (["loading", "exited"], 1, "instance 14100002 is exited"),
        (["loading", "offline"], 1, "instance 14100002 is offline"),
        ([], 7, "instance 14100002 did not run within 0.02 s: created"),
    ],
)
def test_create_names_an_instance_that_does_not_run(
    rlbox: Rlbox, platform: Platform, states: list[str], code: int, told: str
) -> None:
    platform.states = states
    said = rlbox("vast", "create", "vast-5090", *IMAGE, "--yes", "--timeout", "0.02" if not states else "60")
    assert said.code == code
    assert told in said.err
    assert "next:  rlbox vast destroy 14100002 --unfetched --yes" in said.err


def test_the_offer_is_taken_meanwhile(rlbox: Rlbox, platform: Platform) -> None:
    message = "error 410/3907: no_such_ask Instance type 4100002 is no longer available."
    platform.refuses["PUT"] = (410, {"success": False, "error": "no_such_ask", "msg": message})
    said = rlbox("vast", "create", "vast-5090", *IMAGE, "--yes")
    assert said.code == 1
    assert f"vast.ai refused the creation (410): {message}" in said.err
    assert len(platform.calls("PUT")) == 1


def test_a_request_that_may_have_been_carried_out_is_not_repeated(rlbox: Rlbox, platform: Platform) -> None:
    platform.refuses["PUT"] = (503, {"detail": "try later"})
    said = rlbox("vast", "create", "vast-5090", *IMAGE, "--yes")
    assert (said.code, len(platform.calls("PUT"))) == (1, 1)


def test_only_what_rlbox_created_is_destroyed(rlbox: Rlbox, platform: Platform) -> None:
    own(platform, 20000001, "rlbox-vast-5090")
    own(platform, 20000002, "somebody's")
    own(platform, 20000003, "")
    said = rlbox("vast", "destroy", "20000001", "20000002", "20000003", "20000004", "--yes")
    assert said.code == 2
    assert 'instance 20000002 (label "somebody\'s") was not created by rlbox' in said.err
    assert "there is no instance 20000004 of this account" in said.err
    assert "instances of rlbox: 20000001" in said.err
    assert platform.calls("DELETE") == []
    shown = rlbox("vast", "destroy", "20000001", "--unfetched", "--dry-run")
    assert shown.out.splitlines() == [
        "20000001  rlbox-vast-5090  running  $1.755 an hour",
        "",
        "# verdict: this would destroy 1 instance",
    ]
    done = rlbox("vast", "destroy", "20000001", "20000001", "--unfetched", "--yes", "--json")
    assert (done.code, done.data["instances"], done.data["destroyed"]) == (0, [20000001], True)
    assert sorted(platform.instances) == [20000002, 20000003]


def test_the_key_is_in_no_message(rlbox: Rlbox, platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    platform.refuses["POST"] = (401, {"success": False, "error": "auth_error", "msg": "Invalid user key"})
    said = rlbox("vast", "search", "vast-5090")
    assert said.code == 1
    assert "vast.ai refused the search (401): Invalid user key" in said.err
    monkeypatch.setenv("VAST_URL", "http://127.0.0.1:9")
    said = rlbox("vast", "search", "vast-5090")
    assert said.code == 5
    assert "vast.ai does not answer the search" in said.err
    assert KEY not in said.err + said.out
    monkeypatch.delenv("VAST_API_KEY")
    said = rlbox("vast", "search", "vast-5090")
    assert said.code == 2
    assert "no API key of vast.ai is set" in said.err


def test_what_cannot_be_seen_is_not_destroyed(rlbox: Rlbox, platform: Platform) -> None:
    own(platform, 20000001, "rlbox-vast-5090 sft")
    platform.instances[20000001]["actual_status"] = "exited"
    said = rlbox("vast", "destroy", "20000001", "--yes")
    assert said.code == 5
    assert "instance 20000001 is exited: its disk cannot be checked" in said.err
    assert "next:  rlbox vast start 20000001, rlbox vast fetch 20000001, or --unfetched to lose it" in said.err
    assert platform.calls("DELETE") == []


def test_own_instances_are_listed_with_what_they_cost(rlbox: Rlbox, platform: Platform) -> None:
    assert rlbox("vast", "ls").out == "no instance\n"
    own(platform, 20000001, "rlbox-vast-5090 sft")
    own(platform, 20000002, "somebody's")
    said = rlbox("vast", "ls")
    assert said.out.splitlines()[1:] == [
        "20000001  rlbox-vast-5090 sft  running  1.755  ssh -p 31812 root@ssh4.vast.ai"
    ]
    assert [row["id"] for row in rlbox("vast", "ls", "--json").data["instances"]] == [20000001]


def test_stop_asks_once_and_changes_nothing_in_a_dry_run(rlbox: Rlbox, platform: Platform) -> None:
    own(platform, 20000001, "rlbox-vast-5090 sft")
    assert rlbox("vast", "stop", "20000001", "--dry-run").out.endswith("# verdict: this would stop instance 20000001\n")
    assert platform.calls("PUT") == []
    said = rlbox("vast", "stop", "20000001")
    assert (said.code, said.out) == (0, "20000001  stops\n")
    assert platform.calls("PUT") == [{"state": "stopped"}]
    assert platform.instances[20000001]["actual_status"] == "exited"
    assert rlbox("vast", "start", "20000001", "--dry-run").code == 0
    for verb in ("stop", "start", "ssh", "logs", "fetch"):
        refused = rlbox("vast", verb, "20000009")
        assert refused.code == 2
        assert "there is no instance 20000009 of this account" in refused.err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--upload", "nothing-here"), 2, "--upload nothing-here: there is no nothing-here"),
        (("--set", "nosuch=1"), 2, "nosuch"),
        (("--env-file", "nothing-here"), 2, "Invalid value for '--env-file'"),
        (("--profile", "nosuch"), 2, "nosuch"),
        (("--set", "source=/srv/me/verl"), 2, "other machines do not have /srv/me/verl"),
        (("--target", "local"), 2, "target local is not for vast.ai"),
        (("--target", "one"), 5, "job sft does not fit"),
    ],
)
def test_what_cannot_run_is_not_rented(
    rlbox: Rlbox, platform: Platform, folder: Folder, words: tuple[str, ...], code: int, told: str
) -> None:
    folder.target("one", 'include = "vast-5090"\n[hardware]\ngpus = 1\n')
    said = rlbox("vast", "up", "sft", *IMAGE, *words, "--yes")
    assert (said.code, told in said.err) == (code, True), said.err
    assert platform.calls("PUT") == []


def test_the_offer_that_is_shown_is_rented(follow: Follow, platform: Platform) -> None:
    step = follow("vast", "search", "vast-5090")
    (words,) = step.commands({"IMAGE": IMAGE[1]})
    follow.changed(step, [*words, "--yes"], 0)
    assert len(platform.calls("PUT")) == 1


def test_what_did_not_come_to_run_is_destroyed(follow: Follow, platform: Platform) -> None:
    platform.states = ["loading", "exited"]
    follow.types(follow("vast", "create", "vast-5090", *IMAGE, "--yes"))
    assert platform.instances == {}


def test_what_was_not_answered_is_looked_for(follow: Follow, platform: Platform) -> None:
    """The instance that nobody spoke of is there, and so is the one whose end nobody told."""
    platform.on_create = platform.on_destroy = unanswered
    said = follow.types(follow("vast", "create", "vast-5090", *IMAGE, "--yes"))
    assert "14100002  rlbox-vast-5090" in said.out
    step = follow("vast", "destroy", "14100002", "--unfetched", "--yes")
    assert follow.types(step).out == "no instance\n"


def unanswered(row: object) -> None:
    raise Unanswered


def stays_stopped(platform: Platform) -> Callable[[dict[str, Any], str], None]:
    def stay(row: dict[str, Any], state: str) -> None:
        platform.states.clear()
        row["actual_status"] = "exited"

    return stay


def test_a_stopped_instance_is_started_later(follow: Follow, platform: Platform) -> None:
    """It gets its GPUs back only then; or its disk is given up."""
    own(platform, 20000001, "rlbox-vast-5090")
    platform.on_state = stays_stopped(platform)
    step = follow("vast", "start", "20000001", "--timeout", "0.02")
    words, ending = step.commands({})
    platform.on_state = lambda row, state: None
    follow.changed(step, [*words, "--dry-run"], 0)
    follow.changed(step, [*ending, "--yes"], 0)
    assert platform.instances == {}
