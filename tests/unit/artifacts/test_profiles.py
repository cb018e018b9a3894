"""Sources profiles: what is shipped, what a project adds, and every message about a wrong one."""

from __future__ import annotations

import datetime

from fakes import Folder

from rlbox.artifacts.profile import PROTOCOLS, Profile, create_direct_rule, load_profile


def test_direct_has_no_rule(folder: Folder) -> None:
    profile = load_profile(folder.project, "direct")
    assert profile == Profile(name="direct", title="The machine's own settings")
    assert profile.rules_or_direct_rule_for("python") == (create_direct_rule("python"),)


def test_cn_has_a_fail_over_for_what_a_build_needs(folder: Folder) -> None:
    profile = load_profile(folder.project, "cn")
    assert {rule.kind for rule in profile.rule} == set(PROTOCOLS)
    for kind in ("apt", "python", "torch-wheels", "git", "http", "oci"):
        assert len(profile.rules_or_direct_rule_for(kind)) > 1, kind
    mirrors = [rule for rule in profile.rule if rule.protocol != "direct"]
    assert [
        rule.display_name for rule in mirrors if not (rule.checked and rule.expires and rule.checked < rule.expires)
    ] == []


def test_a_project_wins_and_adds(folder: Folder) -> None:
    folder.write("sources/cn.toml", 'title = "mine"\n')
    folder.write(
        "sources/lan.toml",
        """
        title = "the lan"
        x-note = "ours"
        include = "cn"
        [[rule]]
        kind = "python"
        protocol = "index"
        url = "https://mirror.example/simple/"
        name = "lan"
        expires = 2030-01-01
        """,
    )
    assert load_profile(folder.project, "cn").title == "mine"
    lan = load_profile(folder.project, "lan")
    (rule,) = lan.rule
    assert (rule.display_name, rule.url_without_trailing_slash, rule.expires) == (
        "lan",
        "https://mirror.example/simple",
        datetime.date(2030, 1, 1),
    )
    assert list(folder.project.own_pack_and_shipped_source_profile_files()) == ["cn", "direct", "lan"]


def test_an_included_profile_comes_after(folder: Folder) -> None:
    rule = '[[rule]]\nkind = "python"\nprotocol = "index"\nurl = "{}"\n'
    folder.write("sources/under.toml", 'title = "u"\n' + rule.format("https://b.example"))
    folder.write("sources/over.toml", 'title = "o"\ninclude = "under"\n' + rule.format("https://a.example"))
    assert [one.display_name for one in load_profile(folder.project, "over").rule] == ["a.example", "b.example"]
