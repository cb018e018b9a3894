"""What the lint finds in lines that do not work, however they are spelt, and that it is silent on those that do."""

from __future__ import annotations

import sys

import pytest

from rlbox.errors import SpecError
from rlbox.lint.drift import load_drift_rules
from rlbox.lint.rules import lint_text
from rlbox.lint.shell import load_bash_parser

pytestmark = pytest.mark.allow("processes")  # bash -n
STUBS = "/usr/local/cuda/lib64/stubs"
JOB = "ray job submit --working-dir=code -- python -m x"


def rules_of(text: str, name: str = "x.sh") -> list[str]:
    """Return the rules found in a text, without notes, each once."""
    return sorted({one.rule for one in lint_text(name, text, load_drift_rules()) if one.severity != "note"})


BAD = [
    # every spelling of a variable
    ("NCCL_TIMEOUT=600", "nccl-timeout"),
    ("export NCCL_TIMEOUT=600", "nccl-timeout"),
    ('export A=1 NCCL_TIMEOUT="600"  # ten minutes', "nccl-timeout"),
    ("NCCL_TIMEOUT=1800 torchrun train.py", "nccl-timeout"),
    ("env NCCL_TIMEOUT=1800 python train.py", "nccl-timeout"),
    ("sudo -E env 'NCCL_TIMEOUT=5' python train.py", "nccl-timeout"),
    ("export NCCL_TIMEOUT=${NCCL_TIMEOUT:-600}", "nccl-timeout"),
    (': "${NCCL_TIMEOUT:=600}"', "nccl-timeout"),
    ("docker run -e NCCL_TIMEOUT=600 img:1 python x.py", "nccl-timeout"),
    ("mpirun -np 8 -x NCCL_TIMEOUT=600 python x.py", "nccl-timeout"),
    ("srun --export=ALL,NCCL_TIMEOUT=600 python x.py", "nccl-timeout"),
    ("""ray job submit --runtime-env-json '{"env_vars": {"NCCL_TIMEOUT": "600"}}' -- python x.py""", "nccl-timeout"),
    (
        'J="{\\"env_vars\\": {\\"NCCL_TIMEOUT\\": \\"600\\"}}"\nray job submit --runtime-env-json="$J" -- x',
        "nccl-timeout",
    ),
    ("python x.py +ray_kwargs.ray_init.runtime_env.env_vars.NCCL_TIMEOUT=600", "nccl-timeout"),
    ("ssh node2 'export NCCL_TIMEOUT=600; python x.py'", "nccl-timeout"),
    ("if true; then\n  export NCCL_TIMEOUT=600\nfi", "nccl-timeout"),
    ("export VLLM_ATTENTION_BACKEND=FLASH_ATTN", "vllm-attention-backend"),
    ("export VLLM_WORKER_USE_RAY=1", "vllm-worker-use-ray"),
    ("export RAY_num_prestart_python_workers=1", "ray-prestart-workers"),
    ("export HF_HUB_ENABLE_HF_TRANSFER=1", "hf-transfer"),
    ("export GLOO_SOCKET_IFNAME=^lo,docker0", "gloo-interface"),
    (f"export LD_LIBRARY_PATH={STUBS}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}", "stubs-at-run-time"),
    (f"LD_LIBRARY_PATH=/a:{STUBS} python x.py", "stubs-at-run-time"),
    ("export LD_LIBRARY_PATH=/usr/local/cuda-12.9/compat", "compat-at-run-time"),
    ("export LD_LIBRARY_PATH=/a:$LD_LIBRARY_PATH", "empty-path-element"),
    ('export LD_LIBRARY_PATH="$LD_LIBRARY_PATH:/a"', "empty-path-element"),
    ("export LIBRARY_PATH=/a:${LIBRARY_PATH:-}", "empty-path-element"),
    ("export LD_LIBRARY_PATH=/a:", "empty-path-element"),
    ("export NVIDIA_DISABLE_REQUIRES=true", "driver-check-off"),
    (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python x.py --vllm.enable_sleep",
        "expandable-segments-with-sleep",
    ),
    ('RAY_PASSWORD="abcdef123"', "secret-in-clear"),
    # PowerShell
    ('$env:NCCL_DEBUG = "TRACE"', "powershell-in-bash"),
    ("Get-Process python | Stop-Process -Force", "powershell-in-bash"),
    ('nvidia-smi | Out-File "a\\b.txt"', "powershell-in-bash"),
    ("$now = Get-Date", "powershell-in-bash"),
    ("python x.py `\n  a=1", "powershell-continuation"),
    # commands
    ("ray shutdown", "ray-shutdown"),
    ("sleep 2 && /opt/venv/bin/ray shutdown || true", "ray-shutdown"),
    ("bash -c 'ray shutdown'", "ray-shutdown"),
    ("X=$(ray shutdown)", "ray-shutdown"),
    ("ray stop --force || true", "ray-stop"),
    ("for h in a b; do ssh $h ray stop; done", "ray-stop"),
    ("pkill -f train.py || true", "kill-by-name"),
    ("ps aux | grep vllm | awk '{print $2}' | xargs -r kill -9", "kill-by-name"),
    ("kill -9 $(pgrep -f sglang)", "kill-by-name"),
    ("ps aux | grep 'ray:::' | grep $USER", "dead-process-pattern"),
    ('grep -E "[ACTOR]|[SYNC]|ERROR" train.log', "bracket-pattern"),
    ('tail -f "logs/*"', "quoted-glob"),
    ("rm -rf 'ckpt/step_*'", "quoted-glob"),
    ("python x.py 2>&1 | tee x.log", "tee-status"),
    ("curl -s localhost:8000/health && echo OK", "curl-without-fail"),
    ("if ! curl -s http://$H:8000/health; then exit 1; fi", "curl-without-fail"),
    ("until curl --silent http://127.0.0.1:8000/v1/models; do sleep 1; done", "curl-without-fail"),
    ("cat a.jsonl | python3 -m json.tool", "json-lines"),
    ("python -m json.tool < 'a b.jsonl'", "json-lines"),
    ("cd /data/my project", "path-in-two-words"),
    ("python x.py \\ \n  --lr 3", "broken-continuation"),
    ("python x.py \\\n  # the rate\n  --lr 3", "broken-continuation"),
    ("ls /path/to/your/data", "placeholder"),
    ("ssh -p <PORT> host", "placeholder"),
    ("git clone https://example.com/<your-name>/x.git", "placeholder"),
    ("export HF_TOKEN=YOUR_TOKEN", "placeholder"),
    ("huggingface-cli download a/b", "huggingface-cli"),
    ("ulimit -s unlimited", "stack-unlimited"),
    ("nvidia-smi | grep 'CUDA Version'", "nvidia-smi-scraped"),
    ("tmux send-keys -t a 'ray shutdown' C-m", "ray-shutdown"),
    ("grep '[actor]|[rollout]' x.log", "bracket-pattern"),
    ('$Env:PATH += ";x"', "powershell-in-bash"),
    ("rm -rf $env:TEMP\\nccl*", "powershell-in-bash"),
    ("ssh root@xxx.xxx.xxx.xxx", "placeholder"),
    ("P=${P:-18100}\nray start --head --port=$P", "ray-port-in-worker-range"),
    # Ray's options
    ("ray start --head --storage=/s", "ray-storage"),
    ("ray start --head \\\n  --storage /s", "ray-storage"),
    ("ray start --address h:1 --redis-password=x", "ray-redis-password"),
    ("ray start --head --dashboard-host 0.0.0.0", "ray-dashboard-open"),
    ("""ray start --head --system-config='{"debug_mode":true}'""", "ray-system-config-key"),
    ("""ray start --head --system-config '{"object_spilling_config":{"type":"filesystem"}}'""", "ray-spill-config"),
    ('ray start --head --system-config="{\\"object_spilling_config\\":{\\"type\\":\\"x\\"}}"', "ray-spill-config"),
    ("ray start --address=h:1 --system-config='{}'", "ray-worker-system-config"),
    ("ray start --address=h:1 --temp-dir=/d", "ray-worker-temp-dir"),
    ("P=18100\nray start --head --dashboard-port $P", "ray-port-in-worker-range"),
    ("ray start --head --port=${P:-12000}", "ray-port-in-worker-range"),
    ("OPTS='--head --port=15000'\nray start $OPTS", "ray-port-in-worker-range"),
    ("ray start --head --temp-dir=/data/" + "x" * 40, "ray-temp-too-long"),
    ("export RAY_TMPDIR=/data/" + "x" * 40, "ray-temp-too-long"),
    ("docker run -d img:1 ray start --head", "ray-start-ends"),
    ("ray job submit --working-dir . -- python x.py", "ray-job-packs-folder"),
    (f"{JOB} --save_path ./out", "ray-job-relative-output"),
    (f"{JOB} trainer.default_local_dir=checkpoints/a", "ray-job-relative-output"),
    ("ray job submit --address http://h:6379 -- python x.py", "ray-job-address"),
    ("ray job submit -- uv run train.py", "ray-job-uv-run"),
    ("python -m x --nnodes 2 --reward-url http://127.0.0.1:5001/r", "loopback-on-nodes"),
    # other frameworks
    ("python3 -m openrlhf.cli.train_ppo_ray --ref_num_nodes 2", "openrlhf-flags"),
    ("deepspeed --module openrlhf.cli.train_sft --max_len 2048", "openrlhf-flags"),
    ("A=(\n  --pretrain x\n)\npython -m openrlhf.cli.train_ppo_ray ${A[@]}", "openrlhf-flags"),
    ("python -m openrlhf.cli.train_ppo_ray --some_new_flag", "openrlhf-flags"),
    ("python -m openrlhf.models.remote_rm.math_verifier --port 5001", "openrlhf-math-verifier"),
    ("vllm serve m --disable-log-requests", "vllm-disable-log-requests"),
    ("python -m vllm.entrypoints.openai.api_server --worker-use-ray", "vllm-worker-use-ray-flag"),
    # Python in one line
    ("""python -c "import torch; torch.distributed.launch --help" """, "option-in-python"),
    ("""python -c "import torch.distributed as d; d.init_process_group('nccl')" """, "nccl-lone-process"),
    ("""python3 -c 'import ray; ray.get_runtime_context()' || echo down""", "ray-probe"),
    ("python - <<EOF\nimport ray\nprint(ray.is_initialized())\nEOF", "ray-probe"),
    # commands and values that do not arrive
    ("docker run vllm/vllm-openai:v0.17.1 vllm serve /m --port 1", "behind-entrypoint"),
    ('docker run --rm \\\n  docker.io/vllm/vllm-openai:v0.9.1 /bin/bash -c "vllm serve m"', "behind-entrypoint"),
    ("""ray job submit --runtime-env-json='{"env_vars": {"A_B": 1, "C_D": "0"}}' -- x""", "runtime-env-not-text"),
    ("""ray job submit --runtime-env-json '{"env_vars": {"C_D": "0", "A_B": true}}' -- x""", "runtime-env-not-text"),
    ("""ray job submit --runtime-env-json "{'env_vars': {'A_B': '1'}}" -- x""", "runtime-env-json"),
    ("""J='{"env_vars": {"A_B": "1",}}'\nray job submit --runtime-env-json="$J" -- x""", "runtime-env-json"),
    ("""ray job submit --runtime-env-json='{"a": "1"\n"b": "2"}' -- x""", "runtime-env-json"),
    ("set -o pipefail\npython x.py a=1 2>&1 | tee x.log \\\n trainer.resume_mode=disable", "arguments-behind-tee"),
    ("set -o pipefail\npython x.py 2>&1 | tee x.log --epochs 3", "arguments-behind-tee"),
    ("vllm serve m \\\n  --dtype auto\n  --max-model-len 8", "broken-continuation"),
    ("nnodes=2\ntorchrun --nnodes=$nnodes --node-rank=$node_rank x.py", "unset-variable"),
    ("python x.py --size $size --steps $((8 / (size * 2)))", "unset-variable"),
    ("a=1\npython x.py data.val=${val_path} data.train=$a", "unset-variable"),
    ("if true; then\n  echo 1\n", "shell-syntax"),
    ('srun bash -c \\\n&& pip install six \\\n&& python x.py" &> log', "shell-syntax"),
    ("X=<YOUR_PATH>\necho 'never closed\n", "shell-syntax"),
    ("srun -n 1 bash -lc && echo 1", "shell-without-command"),
    ("srun -n 1 bash -c\necho 1", "shell-without-command"),
    ("""ray job submit -- bash -c "source m.sh && python x.py \\$ARGS" """, "ray-job-expands-early"),
    ("""ray job submit -- bash -c "python x.py \\${ARGS[@]}" """, "ray-job-expands-early"),
    ("""ray job submit -- bash -c 'export N=3; python x.py --n $N' """, "ray-job-expands-early"),
    ('\nC=". m.sh && \\\n  python x.py \\${A[@]}"\nray job submit -- bash -c "${C}"', "ray-job-expands-early"),
    ("docker run --network=host img:1 ray start --address=h:6379", "host-network-interface"),
    ("# --network host\ndocker run --net host img:1 vllm serve m --nnodes 2", "host-network-interface"),
    # packages and containers
    ("pip install -U pip && pip install six>=1.16 wheel", "unquoted-bound"),
    ("pip install -U transformers", "pip-replaces-matched"),
    ("uv pip install wandb numpy pandas", "pip-replaces-matched"),
    ("python3 -m pip install vllm", "pip-replaces-matched"),
    ("pip install flash-attn", "pip-build-isolation"),
    ("pip install six>=1.16", "unquoted-bound"),
    ("pip install 'a==1' six>=1.16 \\\n b c>=2", "unquoted-bound"),
    ("wget https://x/Miniconda3-latest-Linux-x86_64.sh\nconda create -n a python=3.12 -y", "conda-default-channel"),
    ("conda init bash", "conda-on-path"),
    ("docker pull verlai/verl:vllm012.latest", "moving-tag"),
    ("docker run --gpus all img:1 python x.py", "docker-small-shm"),
    ("docker run --pid=host img:1 x", "docker-host-pids"),
    ("docker run --ulimit stack=-1 img:1 x", "stack-unlimited-docker"),
    ("# for vast.ai\ndocker run --privileged img:1", "docker-on-rented"),
    ("vastai create instance 1 --image a:1", "vast-without-disk"),
    ("vastai create instance 1 --disk 200 --env '--shm-size=16g -e A=1'", "vast-ignored-option"),
    ("vastai search offers 'gpu_total_ram>=96'", "vast-total-ram"),
    ("# RTX 5090\npip install torch==2.6.0 --index-url https://x/whl/cu124", "cuda-before-blackwell"),
    ("export PIP_INDEX_URL=https://mirror/simple\nuv pip install six", "uv-ignores-pip-index"),
]


@pytest.mark.parametrize(("text", "rule"), BAD, ids=[f"{rule}-{i}" for i, (_, rule) in enumerate(BAD)])
def test_a_line_that_does_not_work_is_found(text: str, rule: str) -> None:
    assert rule in rules_of(text)


GOOD = [
    "# export NCCL_TIMEOUT=600 and ray shutdown",
    "echo 'ray shutdown is Python' # ray shutdown",
    'echo "NCCL_TIMEOUT=$NCCL_TIMEOUT"',
    "unset NCCL_TIMEOUT VLLM_ATTENTION_BACKEND",
    "env | grep -E 'NCCL_TIMEOUT=|HF_TOKEN'",
    "sed -i '/VLLM_ATTENTION_BACKEND=/d' .env",
    '[ -n "$NCCL_TIMEOUT" ] && echo set',
    'if [[ "$NCCL_TIMEOUT" == 600 ]]; then echo yes; fi',
    "export NCCL_TIMEOUT=900\npython x.py actor_rollout_ref.nccl_timeout=$NCCL_TIMEOUT",
    "export MY_NCCL_TIMEOUT=3 NCCL_TIMEOUT_S=3",
    "python x.py --nccl-timeout=600",
    "export NCCL_DEBUG=INFO NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=eth0",
    "export GLOO_SOCKET_IFNAME=eth0",
    "export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false",
    "export LIBRARY_PATH=/usr/local/cuda/lib64/stubs${LIBRARY_PATH:+:$LIBRARY_PATH}",
    "export LD_LIBRARY_PATH=/a${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}",
    "export LD_LIBRARY_PATH=/a\nexport LD_LIBRARY_PATH=/b:$LD_LIBRARY_PATH",
    "export PATH=/opt/venv/bin:$PATH",
    "set -a; source .env; set +a",
    "export HF_TOKEN=$(cat token) WANDB_API_KEY=$WANDB_KEY",
    "ray start --head --port=8100 --dashboard-port=8101 --ray-client-server-port=8102 --temp-dir=/data/r",
    "ray start --head --port=18100 --min-worker-port=20000 --max-worker-port=21000",
    "ray start --address=h:8100 --num-gpus=8 --block",
    """ray start --head --system-config='{"object_spilling_config":"{\\"type\\":\\"filesystem\\"}"}'""",
    "ray status --address=h:8100",
    "RAY_ADDRESS=http://127.0.0.1:8101 ray job submit --working-dir=src -- python x.py --save_path /data/out",
    "ray job submit -- python x.py --output_dir $OUT --log_dir {run}/logs",
    "docker exec box ray stop --force",
    "docker exec box bash -c 'pkill -f train.py; ray stop'",
    "pkill -P $$; pkill -u $USER -f train.py; kill $PID; kill -0 $!",
    "ps aux | grep ray:: | grep $(whoami) | awk '{print $2}' | xargs -r kill",
    "ps aux | grep python",
    'tail -f "a b/"*.log; du -sh "a b/"*/; ls logs/*.log',
    "find . -name '*.log'; rsync -av --include='*.py' a b; scp 'h:logs/*' .; ssh h 'rm logs/*'",
    "grep -E '[0-9]+|[Ee]rror|[a-zA-Z_]+|[[:space:]]|[ACGT]' f",
    "df -h | grep -oE '[0-9.]+[KMGT]'; grep '^[rwx]' f; REWARD_PORT=15001 vllm serve m --port 12000",
    "grep -F '[ERROR]' f; grep '\\[ERROR\\]' f; grep -v '^$' f",
    "set -o pipefail\npython x.py | tee x.log",
    "set -euo pipefail\npython x.py 2>&1 | tee x.log",
    "python x.py | tee x.log; exit ${PIPESTATUS[0]}",
    "echo 1 | sudo tee /proc/x; pip list | tee a; cat x | tee y",
    "curl http://localhost:8000/health",
    "curl -fsS http://localhost:8000/health || exit 1",
    "curl -s -o /dev/null -w '%{http_code}' http://localhost:8000/health && echo",
    "curl -LsSf https://example.com/install.sh | sh",
    "curl -O https://example.com/a.tar.gz && tar xf a.tar.gz",
    "head -n 1 a.jsonl | python -m json.tool; python -m json.tool a.json; python -m json.tool --json-lines a.jsonl",
    "cd '/data/a b' && ls '/data/a b/c' /data/a\\ b/d",
    "python x.py \\\n  --lr 3 \\\n  --b 4",
    "cat <in.txt >out.txt; sort < a > b; diff <(ls a) <(ls b)",
    "python x.py --eos '<EOS>' --image-token '<image>' --sep '<|im_end|>'",
    "cat <<'EOF' > notes.txt\nray shutdown\nexport NCCL_TIMEOUT=1\nEOF",
    "perl -e '\n$foo = 1;\n'; awk '\n$1 == \"x\" {print}\n' f",
    "X=`date`; Y=$(ls `pwd`)",
    "python -m vllm.entrypoints.openai.api_server --model m --port 8000 --attention-backend FLASH_ATTN",
    "python -m openrlhf.cli.train_ppo_ray --actor.num_nodes 2 --reward.remote_url http://h:5001/r",
    "python -m x --nnodes 1 --reward-url http://127.0.0.1:5001/r",
    "torchrun --nproc_per_node 2 nccl_test.py; python -m s --nnodes 2 --host 127.0.0.1; cd {{ site }}",
    "MASTER_ADDR=h MASTER_PORT=1 RANK=0 WORLD_SIZE=1 "
    """python -c "import torch.distributed as d; d.init_process_group('nccl')" """,
    """python -c "import ray; ray.init(address='auto'); print(ray.nodes())" """,
    """python -c "print(3 - -x)" """,
    "pip install --no-deps -e .",
    "pip install -c constraints.txt transformers",
    "pip install torch==2.9.0 torchvision 'numpy<2' wandb; pip install -r requirements.txt",
    "pip install --no-build-isolation flash-attn==2.8.3",
    "wget https://x/Miniforge3.sh\nconda create -n a -c conda-forge --override-channels python=3.12 -y",
    "conda create -n a python=3.12 -y; conda env list | grep a",
    'export PATH="/opt/conda/bin:$PATH"\nsource /opt/conda/bin/activate sandbox',
    "docker run --gpus all --shm-size=16g img:1.2 python x.py; docker run --gpus all img:1 nvidia-smi",
    "docker run --privileged img:1.2; docker pull a/b@sha256:0123",
    "docker build -t mine . && docker run --rm mine true",
    "vastai create instance 1 --image a:1 --disk 200 --env '-e A=1 -p 8000:8000' --ssh",
    "nvidia-smi --query-gpu=name --format=csv,noheader | grep A800; nvidia-smi topo -m; watch -n 1 nvidia-smi",
    "hf download a/b; ulimit -n 65536; tmux new -s sft_train; tmux attach -t sft_train",
    "docker run --entrypoint bash vllm/vllm-openai:v0.17.1 -c 'vllm serve m'; docker run a/vllm-openai:1 vllm serve m",
    "docker run vllm/vllm-openai:v0.17.1 --model serve/m; docker run lmsysorg/sglang:v0.5.5 bash -c 'echo 1'",
    """ray job submit --runtime-env-json='{"env_vars": {"A_B": "x:True,}"}, "config": {"eager": true}}' -- x""",
    """ray job submit --runtime-env-json='{"env_vars": {"A_B": "'$A_B'"}, "pip": ["a", "b"]}' -- x""",
    "set -o pipefail\npython x.py a.b=1 2>&1 | tee --append $(date +%F).log",
    "vllm serve m \\\n  --dtype auto\nA=(\n  --b 1\n  --c 2\n)",
    "for lr in 1 2; do python x.py --lr $lr; done; while read -r seed; do python x.py --seed $seed; done < f",
    "source env.sh\npython x.py --size $size",
    "python x.py --size ${size:-1} --local $size; ssh h \"python x.py --a \\$other\"; bash -c 'python x.py --b $b'",
    "python x.py --model $MODEL --rank $SLURM_PROCID --user $USER",
    "# usage: size=8 x.sh\npython x.py --size $size",
    "pip install six 2>1.log && pip install 'six>=1' \"wheel>=2\" > 3.log",
    "bash -c 'echo 1' && bash -c \"$X\"; find . | xargs bash -c && echo; bash x.sh -c && echo",
    "X=<EOS_X>\npython x.py --a {{ b }} {% if c(d) %}--e{% endif %}; cat <<A >f\n(\nA\nshopt -s extglob\nls !(a|b)",
    "#!/bin/zsh\nfor x (a b) { echo $x }",
    """ray job submit -- bash -c "cd /x && python x.py --a \\$HOME --b $B"; ray job submit -- bash run.sh""",
    """ray job submit -- bash -c 'python x.py --out $OUT'\n\nssh h bash -c 'A=1; echo $A'""",
    "docker run --network host -e GLOO_SOCKET_IFNAME=eth0 img:1 ray start --address=h:6379 --block",
    "docker run --network host img:1 vllm serve m --nnodes 1",
    'rm -rf "${DIR:?}" && cat "${at%/*}/cpuset.cpus"',
    "docker run --ipc=host mine true",
    "git config --local url.https://m/.insteadOf https://g/",
    "case $1 in\n  -h|--help) usage ;;\n  *) exit 2 ;;\nesac",
    "f() { echo $1; }\nfor x in a b; do f $x; done\nwhile read l; do echo $l; done < f",
    "A=$((1 + 2)); (( A > 2 )) && echo; let A=3; [[ $A =~ ^(a|b)$ ]] || true",
]


@pytest.mark.parametrize("text", GOOD, ids=range(len(GOOD)))
def test_a_line_that_works_is_left_alone(text: str) -> None:
    assert rules_of(text) == []


SERVICE = "services:\n  a:\n    image: vllm/vllm-openai:v0.10.0\n"
BY_FORMAT = [
    ("x.yaml", f"{SERVICE}    ipc: host\n    command:\n    - serve\n    - m\n", ["service-behind-entrypoint"]),
    ("x.yaml", f"{SERVICE}    command: vllm serve m --port 1\n", ["service-behind-entrypoint"]),
    ("x.yaml", f'{SERVICE}    command: ["bash", "-c", "vllm serve m"]\n', ["service-behind-entrypoint"]),
    ("x.yaml", f"{SERVICE}    command: --model m --port 1\n", []),
    ("x.yaml", f"{SERVICE}    entrypoint: [bash, -c]\n    command: [vllm serve m]\n", []),
    ("x.yaml", f"{SERVICE}  b:\n    image: a/b:1\n    command: bash -c 'vllm serve m'\n", []),
    ("Dockerfile", 'FROM vllm/vllm-openai:v0.9.1\nCMD ["vllm", "serve", "m"]\n', ["cmd-behind-entrypoint"]),
    ("Dockerfile", 'FROM vllm/vllm-openai:v0.9.1\nCMD ["--model", "m"]\n', []),
    ("Dockerfile", 'FROM vllm/vllm-openai:v0.9.1\nENTRYPOINT []\nCMD ["vllm", "serve", "m"]\n', []),
    ("Dockerfile", "FROM vllm/vllm-openai-rocm:v0.26.0\nCMD bash\n", []),
    ("x.yaml", "a:\n  args: [--model, m, --dtype auto]\n", ["option-and-value-in-one"]),
    ("x.yaml", "a:\n  args:\n  - --model m\n  - --dtype auto\n", ["option-and-value-in-one"]),
    ("x.yaml", "a:\n  args: [--model, m, --engine-args, --dtype auto, --b=c d]\n", []),
    ("x.yaml", "hostNetwork: true\ncommand: [ray, start, '--address=h:1']\n", ["host-network-interface"]),
    ("x.yaml", "hostNetwork: true\ncommand: [ray, start, '--address=auto']\n", []),
    ("Dockerfile", "FROM vllm/vllm-openai:v0.9.1 AS a\nFROM debian:12\nCMD bash\n", []),
]


@pytest.mark.parametrize(("name", "text", "expected"), BY_FORMAT)
def test_what_the_format_decides_is_found(name: str, text: str, expected: list[str]) -> None:
    assert rules_of(text, name) == expected


def test_each_bound_without_quotes_is_found() -> None:
    text = "FROM a/b:1\nRUN pip install -U pip \\\n && pip install six>=1.16 wheel>=0.4 x\n"
    found = [(one.line, one.column) for one in lint_text("Dockerfile", text, load_drift_rules())]
    assert found == [(3, 20), (3, 32)]


def test_processes_ended_by_name_are_one_finding_with_all_lines() -> None:
    (found,) = lint_text("x.sh", "pkill -9 ray\nsleep 1\npkill -9 python\npkill -9 x", load_drift_rules())
    assert (found.line, "(3 in all: pkill; line(s) 1, 3, 4)" in found.what) == (1, True)


def test_more_than_three_findings_of_a_command_are_one() -> None:
    text = "python -m openrlhf.cli.train_ppo_ray --ref_num_nodes 1 \\\n --bf16_x 1 \\\n --a_b 1 \\\n --a_c 1"
    (found,) = lint_text("x.sh", text, load_drift_rules())
    assert "(4 in all: --ref_num_nodes, --bf16_x, --a_b, --a_c; line(s) 1, 2, 3, 4)" in found.what
    (found,) = lint_text("x.sh", 'ssh h "ls /path/to/x"\nls /path/to/x', load_drift_rules())
    assert (found.line, found.rule) == (1, "placeholder")


def test_what_a_document_says_of_its_machine_decides() -> None:
    text = "docker run img:1 x\nuvicorn a:b --port 8080"
    assert rules_of(text) == []
    assert rules_of(f"# vast.ai\n{text}") == ["docker-run-on-rented", "vast-jupyter-port"]


def test_a_comment_switches_a_rule_off_for_its_line() -> None:
    assert rules_of("ray shutdown  # rlbox: ignore=ray-shutdown") == []
    assert rules_of("ray shutdown  # rlbox: ignore=nccl-timeout, ray-shutdown") == []
    assert rules_of("# rlbox: ignore=ray-storage\nray start --head \\\n  --storage=/s") == []
    assert rules_of("ray shutdown  # rlbox: ignore=ray-stop") == ["ray-shutdown"]
    assert rules_of("ray shutdown # rlbox: ignore=ray-shutdown\nray shutdown") == ["ray-shutdown"]


def test_a_secret_is_not_repeated() -> None:
    (found,) = lint_text("x.sh", 'RAY_PASSWORD="hunter22"', load_drift_rules())
    assert "hunter22" not in found.what + found.next_step


def test_place_and_texts_of_a_finding() -> None:
    (found,) = lint_text("a/x.sh", "ray start --head \\\n   --port 18100\n", load_drift_rules())
    assert (found.file, found.line, found.column, found.severity) == ("a/x.sh", 2, 4, "error")
    assert (
        found.what
        == "--port 18100 lies among the ports of Ray's workers: ValueError, the port is used by other components"
    )
    assert (
        found.next_step == "a port outside 10002-19999, or --min-worker-port and --max-worker-port that leave it free"
    )


VERSIONS = [
    ("export VLLM_ATTENTION_BACKEND=X", {"vllm": "0.12.0"}, []),
    ("export VLLM_ATTENTION_BACKEND=X", {"vllm": "0.14.1"}, [("vllm-attention-backend", "warning")]),
    ("export VLLM_ATTENTION_BACKEND=X", {"vllm": "0.26.0"}, [("vllm-attention-backend", "error")]),
    ("export VLLM_ATTENTION_BACKEND=X", {}, [("vllm-attention-backend", "warning")]),
    ("pip install vllm==0.12.0\nexport VLLM_ATTENTION_BACKEND=X", {}, []),
    ("export VLLM_ATTENTION_BACKEND=TORCH_SDPA", {"vllm": "0.12.0"}, [("vllm-torch-sdpa", "error")]),
    ("ray start --head --storage=/s", {"ray": "2.43.0"}, [("ray-storage", "warning")]),
    ("ray start --head --storage=/s", {"ray": "2.60.0"}, [("ray-storage", "error")]),
    ("ray start --head --storage=/s", {"ray": "nightly"}, [("ray-storage", "error")]),
    ("ray start --address=h:1 --temp-dir=/d", {"ray": "2.60.0"}, []),
    ("python -m openrlhf.cli.train_ppo_ray --bf16", {"openrlhf": "0.8.5"}, []),
    ("python -m openrlhf.cli.train_ppo_ray --bf16", {"openrlhf": "0.10.1"}, [("openrlhf-lengths", "error")]),
    ("python -m openrlhf.cli.train_ppo_ray --bf16", {"openrlhf": "0.11.2"}, [("openrlhf-flags", "error")]),
    ("python -m openrlhf.cli.train_ppo_ray --flash_attn", {"openrlhf": "0.9.0"}, [("openrlhf-flash-attn", "error")]),
    ("export HF_HUB_ENABLE_HF_TRANSFER=1", {"huggingface-hub": "0.36.0"}, []),
]


@pytest.mark.parametrize(("text", "versions", "expected"), VERSIONS)
def test_the_version_decides(text: str, versions: dict[str, str], expected: list[tuple[str, str]]) -> None:
    found = lint_text("x.sh", text, load_drift_rules(), versions)
    assert [(one.rule, one.severity) for one in found] == expected


def test_the_range_is_said_when_no_version_is_known() -> None:
    (found,) = lint_text("x.sh", "export VLLM_ATTENTION_BACKEND=X", load_drift_rules())
    assert "(works with vllm <0.13, with a warning, vllm >=0.13,<0.15)" in found.what
    (found,) = lint_text("x.sh", "export VLLM_ATTENTION_BACKEND=X", load_drift_rules(), {"vllm": "0.26.0"})
    assert found.what.endswith("and here it is 0.26.0)")


VERL = "python -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 "
SLIME = "python3 train.py --rollout-batch-size 8 --n-samples-per-prompt 8 --actor-num-gpus-per-node {gpus} {more}"
EXPERTS = "--expert-model-parallel-size"
KNOWN_BY_RELEASES = [
    ("vastai ssh 1", "1 unknown-option error: vastai ssh-url"),
    ("vastai search offers 'num_gpus=1' -raw", "1 unknown-option warning: --raw"),
    ("ray start --head --dashbord-port 8265", "1 unknown-option warning: --dashboard-port"),
    ("vllm serve m --max-model-length 1", "1 unknown-option warning: --max-model-len"),
    (f"{VERL} data.train_batchsize=8", "1 unknown-option warning: data.train_batch_size"),
    (f"{VERL} \\\n a.b=1 +a.c=1 \\\n data.seed=1 \\\n data.seed=2", "2 unknown-option, 4 repeated-argument warning"),
    ("ENV VLLM_LOGGING_LEVELS=DEBUG", "1 unknown-variable warning: VLLM_LOGGING_LEVEL"),
    ("ENV PYTHONBUFFERED=1", "1 unknown-python-variable warning"),
    (SLIME.format(gpus=3, more="--global-batch-size 64"), "1 slime-batch-and-gpus error"),
    (SLIME.format(gpus=8, more=f"{EXPERTS} 16 --expert-tensor-parallel-size 1"), "1 slime-experts-and-gpus error"),
    (SLIME.format(gpus=8, more=f"{EXPERTS} 4 --tensor-model-parallel-size 4"), "1 slime-experts-as-tensor error"),
    (SLIME.format(gpus=8, more="--loss-type sft_loss --apply-chat-template"), "1 slime-sft-template error"),
    (f"{VERL} +actor_rollout_ref.model.path=x +data.mine.x=1 ++data.seed=2", "1 appended-key warning: actor_rollout"),
    ("torchrun --nproc_per_node 8 x.py --tensor-model-parallel-size 3", "1 megatron-and-gpus error"),
    (f"torchrun --nproc_per_node 8 x.py {EXPERTS} 16 --expert-tensor-parallel-size 1", "1 megatron-experts-and-gpus"),
    (SLIME.format(gpus=4, more="--global-batch-size 48"), "1 slime-batch-and-samples error"),
    (f"{VERL} actor_rollout_ref.rollout.tensor_model_parallel_size=3", "1 verl-tensor-parallel error"),
    (f"{VERL} data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=16", "1 verl-mini-batch error"),
    (f"{VERL} actor_rollout_ref.rollout.max_model_len=1024 data.max_prompt_length=1024", "1 verl-max-model-len error"),
    (
        "python3 -m verl.trainer.main_generation data.batch_size=1 trainer.n_gpus_per_node=2",
        "1 verl-generation-batch error",
    ),
    (
        "accelerate launch --num_processes 1 grpo.py --per_device_train_batch_size 1 --num_generations 16",
        "1 trl-generations error",
    ),
    ("python -m sglang.launch_server --reasoning_parser qwen3", "1 unknown-option warning"),
    ("FROM nvcr.io/nvidia/pytorch@sha256:0\nRUN pip install vllm==0.19.1", "2 pip-replaces-matched warning"),
    ("N=2\nA=(data.train_batch_size=$N)\n" + VERL + "${A[@]}", "verl-batch-and-gpus error"),
    ("FROM slimerl/slime@sha256:0\nRUN pip install -e .", "2 pip-replaces-matched warning"),
    ("FROM a@sha256:0\nRUN apt update -y; pip install -U ray", "2 step-hides-failure, 2 pip-replaces-matched warning"),
    ("export WANDB_MODE=${WANDB_MODE:-}", "1 wandb-mode-empty warning"),
    ("pip install 'huggingface_hub>=0.34,<1.0'", "1 hub-before-1 warning"),
]


@pytest.mark.parametrize(("text", "expected"), KNOWN_BY_RELEASES)
def test_what_pinned_releases_do_not_know_is_found(text: str, expected: str) -> None:
    name = "Dockerfile" if text.startswith(("ENV", "FROM")) else "x.sh"
    found = [
        f"{one.line} {one.rule} {one.severity}: {one.next_step}"
        for one in lint_text(name, text, load_drift_rules())
        if one.severity != "note"
    ]
    assert len(found) == expected.count(",") + 1, found
    for part in expected.split(", "):
        assert any(part in one for one in found), found


KNOWN = [
    f"{VERL} data.train_batch_size=8 data.seed=1 +new.key=1 trainer.logger=['console'] $@",
    "ray start --head --port 8100 --num-gpus 8; vllm serve m --no-enable-prefix-caching --hf-overrides.x 1 -tp 2",
    "vastai create instance 1 --image a@sha256:0 --disk 9 --args --my-own 1; vastai show instances --raw",
    "if a; then\n  A=(--lr 1)\nelse\n  A=(--lr 2)\nfi\npython x.py ${A[@]}; docker run -e A=1 -e B=2 img:1 true",
    "VLLM_TP=4\nexport MY_VLLM=1 SGLANG_OWN_NAME=1 PYTHONPATH=/a PYTHON_BIN=x PYTHONUNBUFFERED=1 WANDB_MODE=offline",
    "case $1 in\n  a) G=3 ;;\n  b) G=4 ;;\nesac\n" + SLIME.format(gpus="$G", more="--global-batch-size 64"),
    "A=(--rollout-batch-size 8 --n-samples-per-prompt 8)\nA+=(--global-batch-size 64)\n"
    "python train.py ${A[@]} --actor-num-gpus-per-node 4",
    SLIME.format(gpus=4, more="--global-batch-size 64 --tensor-model-parallel-size 2"),
    "pip install -e . && pip install 'huggingface_hub>=1.0'",
]


@pytest.mark.parametrize("text", KNOWN, ids=range(len(KNOWN)))
def test_what_pinned_releases_know_is_left_alone(text: str) -> None:
    assert rules_of(text) == []


def test_an_unknown_option_is_an_error_where_the_release_is_known() -> None:
    (found,) = lint_text("x.sh", "vllm serve m --log-levl a", load_drift_rules(), {"vllm": "0.24.0"})
    assert (found.severity, "(vllm 0.24.0)" in found.what) == ("error", True)


def test_lint_without_the_extra_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    load_bash_parser.cache_clear()
    with pytest.raises(SpecError) as error:
        lint_text("x.sh", "ls", load_drift_rules())
    load_bash_parser.cache_clear()
    assert error.value.next_step == "pip install 'rlbox[lint]'"


def test_a_base_image_that_sets_the_search_path_is_known() -> None:
    text = "FROM {image}@sha256:0\nENV LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH\n"
    found = {
        image: [one.rule for one in lint_text("Dockerfile", text.format(image=image), load_drift_rules())]
        for image in ("nvidia/cuda:13.0.0-devel", "debian")
    }
    assert found == {"nvidia/cuda:13.0.0-devel": [], "debian": ["empty-path-element"]}


def test_packages_that_are_replaced_on_purpose_are_left_alone() -> None:
    text = "FROM nvcr.io/nvidia/pytorch@sha256:0\nRUN pip uninstall -y flash_attn\nRUN pip install vllm==0.19.1"
    assert not lint_text("Dockerfile", text, load_drift_rules())
