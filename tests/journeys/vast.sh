#!/bin/sh
# A rented machine there and back: rent it, run on it, lose it in the middle, go on, bring home what was made, end it.
# WHEEL is rlbox's wheel, REGISTRY a registry's address. The account is recorded; the instance is a real container behind
# sshd, whose on-start script, stop, disk and files are real. What only an account shows is untested.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/typed.sh"
PATH=$HOME/.local/bin:$PATH
mkdir rented && cd rented

# what was there before: ssh with a key that the account knows, a target, a job, an image in a registry, and the account
command -v ssh >/dev/null || {
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends openssh-client >/dev/null
}
mkdir -p "$HOME/.ssh" && chmod 700 "$HOME/.ssh"
[ -e "$HOME/.ssh/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -f "$HOME/.ssh/id_ed25519"
mkdir -p images/rented jobs
cat >images/rented/target.toml <<'END'
title = "what is rented"
[hardware]
platform = "vast"
gpus = 4                         # rented by its name alone: no driver is here, and nothing asks for one
[base]
bootstrap = "debian:bookworm"
packages = ["ca-certificates", "iproute2", "openssh-server", "procps", "python3", "python3-venv", "tmux"]
[[stack]]
name = "tools"
packages = ["six==1.16.0"]
[disk]
mount = "/workspace"
host = "/workspace"
need_gib = 8.0
[run]
shm_gib = 0.05
[vast]
gpu_name = "RTX 5090"
max_price = 2.5
END
cat >jobs/count.toml <<'END'
title = "a training that a stop cuts"
target = "rented"
secrets = ["WANDB_API_KEY"]
[[stages]]
name = "train"
title = "counts on from where it was cut"
secrets = ["WANDB_API_KEY"]
command = ["python3", "{data}/train.py", "{data}"]
limits = { total_s = 600, silence_s = 60 }
gate = { require = [{ pattern = "^Final loss 42$" }] }
END
cat >train.py <<'END'
import os, pathlib, sys, time
disk = pathlib.Path(sys.argv[1])
at = disk / "at"
step = int(at.read_text()) if at.exists() else 0
print("resumed at" if step else "begun at", step, flush=True)
while step < 40:
    time.sleep(0.3)
    step += 1
    print("step", step, flush=True)
    if step % 10 == 0:
        folder = disk / f"ckpts/checkpoint-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        head = b'{"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}'
        (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"abcd")
        (folder / "config.json").write_text("{}")
    at.with_suffix(".new").write_text(str(step))
    at.with_suffix(".new").replace(at)
assert os.environ["WANDB_API_KEY"]
print("Final loss", (disk / "my data/text.txt").read_text().strip())
END
mkdir data && echo 42 >data/text.txt
echo WANDB_API_KEY=planted-for-the-journey >my.env

typed uv tool install --quiet "$WHEEL"

rlbox engine up
rlbox lock rented && rlbox build rented
rlbox push rented --to "$REGISTRY/me/rented:1"
python3 "$here/account.py" "$PWD" "$HOME/.ssh/id_ed25519.pub" >account.log 2>&1 &
account=$!
instance=rlbox-journey-vast
trap 'kill $account; docker rm --force --volumes $instance >/dev/null 2>&1 || true' EXIT
until [ -s address ]; do sleep 0.1; done
VAST_URL=$(cat address)
VAST_API_KEY=a-key-that-no-message-may-hold
export VAST_URL VAST_API_KEY

typed rlbox vast up count --image "$REGISTRY/me/rented:1" --detach --upload train.py --upload 'data=my data' \
    --env-file my.env --yes --json >up

# meanwhile the platform stops it, and starts it again
number=$(sed -n 's/.*"instance": \([0-9]*\).*/\1/p' up)
seconds=0
until docker exec $instance cat /workspace/.rlbox-up/ended.json >ended 2>/dev/null; do
    seconds=$((seconds + 1))
    [ $seconds -le 600 ] || { echo "journey: the run did not end" >&2; cat account.log >&2; exit 1; }
    sleep 1
done
found 'the platform: stopped' account.log
found 'the platform: started' account.log
found '"state": "passed"' ended

typed rlbox vast fetch "$number"
cat "vast-$number"/runs/*/stages/*/stage.log "vast-$number"/runs/*/stages/*/attempt-1/stage.log >logs
found 'begun at 0' logs
found 'resumed at' logs
found 'Final loss 42' logs
[ "$(ls "vast-$number/ckpts")" = "$(printf 'checkpoint-%s\n' 10 20 30 40)" ] || { ls "vast-$number/ckpts" >&2; exit 1; }

typed rlbox vast destroy "$number" --yes
[ -z "$(docker ps --all --quiet --filter name=$instance)" ] || { echo "journey: the instance is still there" >&2; exit 1; }
at_most 4
