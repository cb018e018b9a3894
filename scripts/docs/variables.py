"""The page of environment variables, docs/variables.md."""

from __future__ import annotations

READ = {
    "RLBOX_PROJECT": "folder with your `images/`, `jobs/` and `sources/`; as `--project`",
    "RLBOX_LANG": "`en` or `zh`: language of help, messages and tables; as `--lang`",
    "RLBOX_DATA": "data disk on the host; as `--data`",
    "RLBOX_STORE": "folder of [downloaded files](store.md); as `--store`",
    "RLBOX_SOURCES": "[mirror profile](sources.md) for every target, for example `cn`; as `--sources`",
    "RLBOX_GPUS": "[GPUs](gpus.md) of containers; as `--gpus`",
    "RLBOX_CA_BUNDLE": "certificates for the connections of rlbox and of builds",
    "RLBOX_PROJECT_NAME": "name of the project in the tags of [images](images.md)",
    "RLBOX_ENGINE_ARGS": "more flags for a dockerd that `rlbox engine up` starts",
    "XDG_CACHE_HOME": "downloads and environments are in `rlbox/` below it; default `~/.cache`",
    "XDG_STATE_HOME": "records of runs are in `rlbox/` below it; default `~/.local/state`",
    "DOCKER_HOST, DOCKER_CONTEXT, DOCKER_CONFIG": "the Docker engine, as for the docker client",
    "SSL_CERT_FILE, PIP_CERT, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE": "certificates, without `RLBOX_CA_BUNDLE`",
    "HTTP_PROXY, HTTPS_PROXY, NO_PROXY": "proxies of downloads and builds, also in lower case",
    "VAST_API_KEY": "key of your [vast.ai](vast.md) account",
    "NO_COLOR": "no colors",
}
"""Variables of the shell that rlbox reads."""
IN_A_RUN = {
    "RLBOX_DATA": "path of the data disk",
    "RLBOX_RUN_DIR": "folder of the run",
    "RLBOX_STAGE": "name of the stage",
}
"""Variables that rlbox sets in each stage and service."""
IN_AN_IMAGE = {
    "RLBOX_RAY_PORT": "first port of Ray; it and the next 15",
    "RLBOX_ENV_FILE": "file that the container reads at its start, instead of the data disk's `.env`",
    "RLBOX_USER": "in `compose.yaml`: `UID:GID` of the container",
    "RLBOX_WHEEL": "in the vast.ai on-start script: address of rlbox's wheel, for other images",
}
"""Variables that programs of an image and files of a target read."""
_BEGIN = """\
<!-- made by: make docs -->
# Environment variables

An option on the command line overrides its variable.

```console
$ rlbox --lang zh --help     # Chinese messages for one command; for all: export RLBOX_LANG=zh
用法： rlbox [OPTIONS] COMMAND [ARGS]...
...
```

Without `RLBOX_LANG`, the language follows `LC_ALL`, `LC_MESSAGES` and `LANG`. Reports, logs and
`--json` stay English.
"""


def variables_page() -> str:
    """Return the page's text."""
    return "\n".join(
        [
            _BEGIN,
            *_table("Read by rlbox", READ),
            *_table("Set in stages and services", IN_A_RUN),
            *_table("Read in a container, and by files of a target", IN_AN_IMAGE),
            "For variables of a stage, use [`env`](job-file.md#keys-of-a-stage). "
            "For tokens, see [secrets](secrets.md).",
            "",
        ]
    )


def _table(title: str, rows: dict[str, str]) -> list[str]:
    lines = [f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {text} |" for names, text in rows.items()]
    return [f"## {title}", "", "| variable | meaning |", "|---|---|", *lines, ""]
