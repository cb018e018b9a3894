"""The checks that rows of the table may name, one per line."""

from __future__ import annotations

from rlbox.plan import lint_package_checks as packages
from rlbox.plan import lint_python_checks as python
from rlbox.plan import lint_ray_checks as ray
from rlbox.plan import lint_shell_checks as shell
from rlbox.plan import lint_value_checks as values
from rlbox.plan.lint_hits import Check

_ALL: tuple[Check, ...] = (
    shell.powershell_line,
    shell.powershell_backtick,
    shell.quoted_glob,
    shell.bracket_grep,
    shell.tee_status,
    shell.curl_status,
    shell.json_lines,
    shell.kill_by_name,
    shell.dead_pattern,
    shell.split_path,
    shell.option_line,
    shell.crlf,
    shell.background_log,
    values.empty_element,
    values.placeholder,
    values.secret,
    values.wandb_name,
    values.segments_with_sleep,
    values.no_mirror_for_xet,
    values.index_for_uv,
    ray.ray_ports,
    ray.long_temp,
    ray.spill_object,
    ray.config_key,
    ray.job_address,
    ray.relative_output,
    ray.loopback,
    ray.entry_ends,
    ray.service_ports,
    ray.ray_stop,
    ray.uv_in_ray,
    ray.openrlhf_flags,
    python.option_in_python,
    python.lone_process_group,
    python.unattached_probe,
    python.late_hub_setting,
    python.renamed_in_python,
    python.keyword_of,
    packages.unpinned,
    packages.redirected_bound,
    packages.isolated_build,
    packages.default_channel,
    packages.conda_first,
    packages.moving_tag,
    packages.old_cuda,
    packages.small_shm,
    packages.privileged,
    packages.docker_option,
    packages.ignored_on_vast,
    packages.unattended_apt,
    packages.baked_variable,
    packages.syntax_line,
    packages.docker_there,
    packages.served_port,
    packages.scraped,
)
CHECKS: dict[str, Check] = {getattr(one, "__name__", ""): one for one in _ALL}
