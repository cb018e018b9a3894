# `make smoke`: the main job on the `local` target, from a bare machine. `make test`: what every change must pass.
# `make nightly`: everything else, part by part.
.PHONY: smoke test cases nightly lint size render docs site messages compat relock fresh bench gpu-check gpu-proof-pack gpu-hangs gpu-fits

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
	$(PY) -m pytest -m "not slow and not elsewhere and (core or not engine)" -n 3 --dist loadscope --no-loadscope-reorder \
	    $(addprefix tests/,engine supervisor contract jobs golden cli unit) $(ARGS)

# Labelled failures, diagnosed, as a table by kind; CASES=DIR for others. Adding one is a directory: see scripts/cases.py.
cases: .venv/rlbox.stamp
	$(PY) scripts/cases.py $(CASES)

# What takes longer: the engine in depth, clusters, campaigns, fuzz, chaos, benchmarks. ARGS=--list names the parts, ARGS=NAME
# runs one, PART=day/10 the tenth of the day.
nightly: .venv/rlbox.stamp
	$(RLBOX) engine up
	scripts/ensure-test-tools.sh
	$(PY) scripts/nightly.py $(if $(PART),--part $(PART)) $(ARGS)

# The README's two commands, twice, on a bare machine in namespaces of its own: ROOT=debian or ROOT=ubuntu; needs root.
fresh:
	scripts/fresh-machine.sh prove $(or $(ROOT),debian)

# The translations brought up to date with the code; what is new has to be filled in there.
messages: .venv/rlbox.stamp
	$(PY) scripts/messages.py

lint: .venv/rlbox.stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	$(PY) scripts/prose.py
	$(PY) scripts/size.py

size: .venv/rlbox.stamp
	$(PY) scripts/size.py

# What package metadata says of the stacks, out of this machine's index (1,200 releases, some minutes the first time).
compat: .venv/rlbox.stamp
	$(PY) scripts/compat.py

# Every goal, measured for an hour or two, and its table; ARGS=--resume goes on with it. `make nightly` runs each once, small.
bench: .venv/rlbox.stamp
	$(RLBOX) engine up
	scripts/ensure-test-tools.sh
	$(RLBOX) build local
	$(PY) -m benchmarks --table benchmarks/RESULTS.md $(ARGS)

render: .venv/rlbox.stamp
	$(RLBOX) render

# docs/fixes from the fix catalogue, and docs/variables.md.
docs: .venv/rlbox.stamp
	$(PY) scripts/make_docs.py

# The pages and both READMEs as a site with search in both languages, in build/site.
site: .venv/rlbox.stamp
	$(PY) -m scripts.docs.reference
	NO_MKDOCS_2_WARNING=1 PYTHONWARNINGS=ignore .venv/bin/uv run --quiet --isolated --no-project --with mkdocs-material==9.8.1 \
	    --with jieba==0.42.1 mkdocs build --quiet --strict

# Pin the tool's own dependencies again: every Python from 3.10 on, hashes of files for Linux, no index named.
relock:
	@test -x .venv/bin/uv || scripts/ensure-python.sh
	@mkdir -p build
	.venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.10 --group dev pyproject.toml -o build/pylock.toml
	$(PY) scripts/linux_lock.py build/pylock.toml >build/requirements.lock
	mv build/requirements.lock requirements.lock

.venv/rlbox.stamp: requirements.lock pyproject.toml scripts/ensure-python.sh
	@scripts/ensure-python.sh
	@touch $@

# A built target on a machine with GPUs: doctor, components, planted faults, a small SFT and GRPO run (docs/gpus.md).
gpu-check: .venv/rlbox.stamp
	$(PY) tests/gpu/check.py $(TARGET) $(ARGS)

# What a machine with GPUs and no network is given in calls of 64 MiB, below .carry, and what is typed in each (docs/internal/gpu-machine.md).
gpu-proof-pack: .venv/rlbox.stamp
	$(PY) tests/gpu/calls.py $(ARGS)

# Ranks that wait for each other on two GPUs or more, which must be found, named, and told from those that work.
gpu-hangs: .venv/rlbox.stamp
	$(PY) tests/gpu/hangs.py --python $(or $(TORCH_PYTHON),python3) $(ARGS)

# Job sft's training of 7.6 x 10^9 parameters on one GPU, with the memory of its target's card: what fits, and what does not.
gpu-fits: .venv/rlbox.stamp
	$(PY) tests/gpu/fits.py --render | $(or $(TORCH_PYTHON),python3) tests/gpu/fits.py --rendered /dev/stdin $(ARGS)
