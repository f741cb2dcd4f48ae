PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILE := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
PIP := $(BIN)/python -m pip --disable-pip-version-check -q


.PHONY: run setup test test-all check docs report pictures parity fuzz hostile crash cma drift traces setup-llm view cluster trees board champion rejudged kernels lock clean help
run: $(VENV)/run  ## set up, then search on the bundled measurements into a new numbered run
	$(BIN)/evolve run

setup: $(VENV)/run  ## set up only: enough for predictions, without a search

# Three processes on two cores: while some tests wait for a browser, a server or a child, others compute.
test: $(VENV)/dev  ## set up, then pass the tests
	$(BIN)/python -m pytest -n 3 --dist worksteal -m 'not slow'

test-all: $(VENV)/dev  ## all tests, those included that take seconds each
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal --hypothesis-profile all

check: $(VENV)/dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/dev  ## write the reference pages and the JSON Schema into docs/reference/: two minutes
	PYTHONPATH=.:tests/support $(BIN)/python tools/reference.py
	PYTHONPATH=.:tests/support $(BIN)/python tools/json_schema.py
	PYTHONPATH=.:tests/support $(BIN)/python tools/notebook.py

report: $(VENV)/dev  ## write the report on the champion in docs/ again: half a minute
	PATH="$(abspath $(BIN)):$$PATH" evolve report champion --md > build-report.md
	mv build-report.md docs/champion.md

pictures: $(VENV)/dev  ## draw the pictures of docs/ again
	PYTHONPATH=.:tests/support $(BIN)/python tools/pictures.py

parity: $(VENV)/dev  ## hundreds of random programs through Go and through Python: minutes
	PYTHONPATH=.:tests/support $(BIN)/python tools/parity.py

fuzz: $(VENV)/dev  ## a hundred thousand bad program texts: minutes
	PYTHONPATH=.:tests/support $(BIN)/python tools/fuzz_language.py

hostile: $(VENV)/dev  ## damaged files, bombs, foreign text, hostile programs, full disks: minutes
	PYTHONPATH=.:tests/support $(BIN)/python tools/hostile.py

crash: $(VENV)/dev  ## kills, stops and cuts at random moments of every long command: twenty minutes
	PYTHONPATH=.:tests/support $(BIN)/python tools/crash.py

cma: $(VENV)/dev  ## searches that fit by Gauss-Newton against searches that fit by CMA-ES: half an hour
	PYTHONPATH=.:tests/support $(BIN)/python tools/cma_comparison.py

drift: $(VENV)/dev  ## how often `evolve drift` finds synthetic drifts, and false alarms: ten minutes
	PYTHONPATH=.:tests/support $(BIN)/python tools/drift_power.py

traces: $(VENV)/dev  ## a synthetic run with 300 MB of traces, made and ingested: minutes
	PYTHONPATH=.:tests/support $(BIN)/python tools/ingest_speed.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run: $(VENV)/bin/python requirements.lock pyproject.toml
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/dev: $(VENV)/run requirements-dev.lock
	$(PIP) install --require-hashes -r requirements-dev.lock
	touch $@

setup-llm: $(VENV)/run  ## set up language models as proposers, which a run does not need
	$(PIP) install --require-hashes -r requirements-llm.lock

view: $(VENV)/run  ## set up what `evolve view`, `evolve plot` and sums as formulas need
	$(PIP) install --require-hashes -r requirements-view.lock

cluster: $(VENV)/run  ## set up `--cluster`, which one machine does not need
	$(PIP) install --require-hashes -r requirements-cluster.lock

trees: $(VENV)/run  ## set up what training an ensemble of trees needs; programs with one need nothing more
	$(PIP) install --require-hashes -r requirements-trees.lock

board: $(VENV)/dev  ## train everything on the leaderboard and write its page again: an hour, or go on where it was interrupted
	PYTHONPATH=.:tests/support $(BIN)/python tools/board_page.py runs/leaderboard

champion: $(VENV)/run  ## repeat the search that found the program that is shipped, and ship it: eight minutes
	$(BIN)/evolve run --config seeds/champion/config.yaml --out runs/champion
	$(BIN)/python tools/ship.py runs/champion

rejudged: $(VENV)/dev  ## judge what earlier rounds believed again, and write docs/rejudged.md: minutes
	$(BIN)/python -m research rejudged --page docs/rejudged.md

# The pinned sources of the kernel tables; their hashes are also in tools/kernel_tables.py. Read as archives, never
# installed: the tags only name the files.
CORE_WHEEL := build/aiconfigurator_core-0.12.0-cp311-abi3-manylinux_2_28_x86_64.whl
FURTHER_WHEEL := build/aisimulate-0.13.0.dev202610270000000085-cp311-abi3-manylinux_2_28_x86_64.whl
KERNELS_PINS := 'aiconfigurator-core==0.12.0 --hash=sha256:aadc4aad0a00bf8a61c477c62bef43de479849c3aa0b1c3078068e08309eccc4' \
	'aisimulate==0.13.0.dev202610270000000085 --hash=sha256:17dcb3be6687ebc0b6cb76c59fcd3df46212fe9c7247f1169537245002dc76b1'

$(CORE_WHEEL) $(FURTHER_WHEEL) &: | $(VENV)/run
	mkdir -p build
	printf '%s\n' $(KERNELS_PINS) > build/kernels.txt
	$(PIP) download --no-deps --require-hashes --only-binary :all: --python-version 3.11 --implementation cp --abi abi3 \
		--platform manylinux_2_28_x86_64 -d build -r build/kernels.txt

kernels: $(CORE_WHEEL) $(FURTHER_WHEEL) $(VENV)/run  ## write configs/kernels again from the pinned wheels of measured kernels: 202 MB, once
	$(BIN)/python tools/kernel_tables.py $(CORE_WHEEL) $(FURTHER_WHEEL)

# python-dateutil<3, which pandas uses: litellm's boto3 admits no later one, and all lock files shall agree
lock:  ## write the lock files again from pyproject.toml
	$(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/python -m pip -q install uv
	printf 'setuptools>=77\npython-dateutil<3\n' | $(VENV)-lock/bin/$(COMPILE) pyproject.toml - -o requirements.lock
	$(VENV)-lock/bin/$(COMPILE) --extra dev -c requirements.lock pyproject.toml -o requirements-dev.lock
	$(VENV)-lock/bin/$(COMPILE) --extra llm -c requirements-dev.lock pyproject.toml -o requirements-llm.lock
	$(VENV)-lock/bin/$(COMPILE) --extra cluster -c requirements-dev.lock pyproject.toml -o requirements-cluster.lock
	$(VENV)-lock/bin/$(COMPILE) --extra view -c requirements-dev.lock pyproject.toml -o requirements-view.lock
	$(VENV)-lock/bin/$(COMPILE) --extra trees -c requirements-dev.lock pyproject.toml -o requirements-trees.lock
	rm -rf $(VENV)-lock

clean:  ## remove what make made
	rm -rf $(VENV) $(VENV)-lock build *.egg-info .pytest_cache .mypy_cache .ruff_cache

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'
