# gpucast: two commands. Needs make and Python >= 3.11; everything else goes into .venv.
#   make serve   install, then start database, API and worker   (PORT, HOST, DATABASE_URL, GPUCAST_DATA_DIR)
#   make test    install, then format, lint, types, layers, locks, documentation and every test
#   make coverage which lines of compiled functions the tests execute; part of `make test`
#   make measure install what `gpucast measure` needs on the machine with the device, and say how to run it
#   make train   the artefacts of models_store/ from the data sets in DATA (or GPUCAST_SHARED_DATA)
#   make contacts  every night and before a release: first contacts of new data sets in DATA, then the error model
#   make docs    build the documentation, strictly, and open it where there is a browser
#   make client  clients/python/gpucast_client.py from the OpenAPI document again
#   make lock    resolve pyproject.toml into requirements/*.txt again

SHELL := /bin/sh
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
UV := $(BIN)/uv
# What is installed already stays installed: serving works as well from the development environment.
INSTALLED := $(if $(wildcard .venv/.dev),.venv/.dev,.venv/.service)
# A user without a home of their own still gets a cache.
ifneq ($(shell test -w "$$HOME" && echo yes),yes)
export UV_CACHE_DIR := $(CURDIR)/.venv/cache
endif

# A company's own certificate authority is among the system's certificates.
export UV_SYSTEM_CERTS ?= 1
NOT_INSTALLED = { echo "gpucast: packages could not be installed (above). Behind a proxy set HTTPS_PROXY; for a certificate \
	authority of your own set SSL_CERT_FILE and PIP_CERT to its file; without a network set PIP_FIND_LINKS and UV_FIND_LINKS to a \
	folder of the packages in requirements/." | tr -s '[:space:]' ' ' >&2; echo >&2; exit 1; }

# Processes are many, so bytecode is kept even where the environment asks for none.
unexport PYTHONDONTWRITEBYTECODE

CHECKS := types site style layers locks
.PHONY: client serve train contacts measure test check $(CHECKS) compile coverage browser docs lock install clean

serve: $(INSTALLED)
	@$(BIN)/gpucast serve

train: $(INSTALLED)
	@$(BIN)/gpucast train $(if $(DATA),--data "$(DATA)")

contacts: $(INSTALLED)
	@$(BIN)/gpucast evaluate first-contact $(if $(DATA),--data "$(DATA)") --results
	@$(BIN)/gpucast evaluate error-model $(if $(DATA),--data "$(DATA)") --write

measure: .venv/.measure
	@echo "run: $(BIN)/gpucast measure --minutes 10 --out measured.parquet   (docs/how-to/measure-a-gpu.md)"

# Files run whole in one of three processes, each with a PostgreSQL of its own; WORKERS=0 runs all in one. The third uses
# two cores while a test of another waits.
WORKERS ?= 3
# A process computes on one thread: more would wait for one another on the cores that the other process uses.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# The checks, the compiler and the installation of PyTorch need little of one another, and two cores are there. The
# longest begin first.
test: .venv/.dev
	@$(MAKE) --no-print-directory -j 3 coverage compile .venv/.torch browser $(CHECKS)
	$(ONE_THREAD) $(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 30 --durations-min 1

# What answers requests, compiled once before two processes would each do it.
compile: $(INSTALLED)
	@$(BIN)/python -m app.bootstrap.warm

# Which lines of compiled functions the tests execute, with the compiler off.
coverage: .venv/.dev
	$(ONE_THREAD) $(BIN)/python -m tests.compiled_lines

# What the browser tests need, installed while the checks run; without it they say so.
browser: .venv/.dev
	-@$(BIN)/python -m tests.browser.chromium

check: .venv/.dev
	@$(MAKE) --no-print-directory -j 2 $(CHECKS)

style: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/.dev
	$(BIN)/mypy

layers: .venv/.dev
	$(BIN)/lint-imports

locks: .venv/.dev
	$(BIN)/python requirements/lock.py --check

site: .venv/.dev
	$(SITE)

# Strict: a warning, such as a link to nothing, is an error. All pages are read anew, so that none hides one.
SITE = $(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --nitpicky docs build/docs

docs: .venv/.dev
	@$(SITE)
	@echo "open build/docs/index.html"
	@if [ -n "$$DISPLAY$$WAYLAND_DISPLAY" ] || [ "$$(uname)" = Darwin ]; then \
	$(BIN)/python -m webbrowser "file://$(CURDIR)/build/docs/index.html" >/dev/null || true; fi

install: $(INSTALLED)

lock: .venv/.dev
	PATH="$(BIN):$$PATH" $(BIN)/python requirements/lock.py

client: .venv/.dev
	$(BIN)/python clients/python/generate.py

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

.venv/.service .venv/.dev: .venv/.%: requirements/%.txt pyproject.toml | $(UV)
	@echo "installing from $<"
	@$(UV) pip sync --quiet --require-hashes --python $(BIN)/python $< || $(NOT_INSTALLED)
	@$(UV) pip install --quiet --no-deps --no-build-isolation --offline --python $(BIN)/python --editable .
	@touch $@

# PyTorch, for the tests. After the locked packages, as these remove all others.
.venv/.torch: requirements/torch.txt .venv/.dev
	@echo "installing PyTorch"
	@$(TORCH) --no-compile --requirement requirements/torch.txt
	@touch $@

# The machine's own pip chooses PyTorch's build (CPU or CUDA), so no hash of it can be locked.
TORCH = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements/torch.txt

.venv/.measure: $(INSTALLED) requirements/torch.txt
	@echo "installing PyTorch"
	@$(TORCH) --no-build-isolation --editable '.[measure]'
	@cuda=$$($(BIN)/python -c 'import torch; print((torch.version.cuda or "").partition(".")[0])'); \
	test -z "$$cuda" || { echo "installing CuPy, which compiles the CUDA kernels"; $(TORCH) "cupy-cuda$${cuda}x"; } \
	|| echo "no CuPy: the suite kernels is left out"
	@touch $@

# uv itself comes from the lock too, by the pip that Python brings along.
$(UV):
	@test -n "$(PYTHON)" || { echo "gpucast needs Python >= 3.11 (python3-venv included); none was found" >&2; exit 1; }
	@echo "creating .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv
	@sed -n '/^uv==/,/[^\\]$$/p' requirements/service.txt > .venv/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement .venv/uv.txt \
	|| $(NOT_INSTALLED)
