# `make demo` and `make test` set everything up first; `make help` lists the rest.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: help setup engine demo test check-long lint size bench fuzz wheel manifests lock newest soak scoreboard fidelity switchback sealed docs proto clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 19

setup: .venv/ready balancer/kernel/compiled/kernel.so balancer/native/module.so ## everything that is needed, into .venv

.venv/ready: pyproject.toml deploy/setup triton/requirements.txt $(wildcard deploy/lock/*.txt)
	@PYTHON=$(PYTHON) deploy/setup

# Of the same sources as the serving process: another one is not loaded.
balancer/kernel/compiled/kernel.so: .venv/ready $(shell find policies balancer/kernel -name '*.py')
	$(BIN)/python -m balancer.kernel.compiled.build

balancer/native/module.so: balancer/kernel/compiled/kernel.so $(wildcard envoy/module/*.[ch] balancer/native/*.py balancer/extproc/*.py)
	$(BIN)/python -m balancer.native.build

# Compiled as it first runs, and kept in the user's cache.
engine: .venv/ready
	@$(BIN)/balancer simulate --scenario homogeneous-steady --policy expected_latency --no-ladder --requests 10 --seeds 1 >/dev/null

demo: setup ## the whole stack, real requests, eight policies; report in out/demo
	$(BIN)/python -m dev.demo

test: .venv/ready ## all tests but the long ones, with real Envoy and real Triton, in three processes
	@# Before, and beside each other: the engine takes as long to compile as the kernel does.
	@$(MAKE) --jobs 2 setup engine
	@# What fails beside others runs once more alone, and has to pass there: real processes share two cores.
	$(BIN)/pytest -n 3 || { [[ $$? == 1 ]] && $(BIN)/pytest -x --last-failed --last-failed-no-failures=none; }

check-long: setup ## what takes hours: the long tests, properties with all their examples, `make fuzz` and `make soak`
	$(BIN)/pytest -n 3 -m long
	ALL_EXAMPLES=1 $(BIN)/pytest -n 3 tests/property tests/simulation
	$(MAKE) fuzz soak

lint: setup ## style, length of files, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@git ls-files '*.py' ':!*_pb2.py' | xargs awk 'FNR == 401 {print FILENAME ": over 400 lines"; long = 1} END {exit long}'
	$(BIN)/mypy
	$(BIN)/lint-imports

size: ## how large the project is: lines of code, lines of tests, words of pages
	@git ls-files '*.py' '*.c' '*.h' ':!tests' ':!*_pb2.py' | xargs cat | wc -l | xargs printf '%7d lines of code\n'
	@git ls-files 'tests/*.py' 'tests/*.c' 'tests/*.h' | xargs cat | wc -l | xargs printf '%7d lines of tests\n'
	@git ls-files '*.md' | xargs cat | wc -w | xargs printf '%7d words of pages\n'
	@wc -w < README.md | xargs printf '%7d of them in README.md\n'
	@grep -c '^| `' docs/config.md | xargs printf '%7d settings\n'

bench: setup ## speed and memory; tables in out/bench
	@# The client, h2load; where it cannot be installed from here, the benchmark says what to do.
	@command -v h2load >/dev/null || [[ $$(id -u) != 0 ]] || \
	  { apt-get update -qq && apt-get install --yes -qq --no-install-recommends nghttp2-client >/dev/null; }
	$(BIN)/python -m dev.bench

fuzz: setup ## random hostile inputs: 1,000,000 for the module's reader, 100,000 states for it, 250,000 at every port, 30 minutes
	for part in request state pick native proxy; do PYTHONPATH=tests $(BIN)/python -m fuzz $$part; done

wheel: setup ## a package with kernel and module in it, for machines without a compiler; in out/wheel. ARCH=aarch64: for those (extra balancer[cc])
	@$(if $(ARCH),$(BIN)/python -m balancer.kernel.compiled.build --target $(ARCH) --out out/$(ARCH)/kernel.so)
	@$(if $(ARCH),$(BIN)/python -m balancer.native.build --target $(ARCH) --out out/$(ARCH)/module.so)
	@# What is left there of a build before would come along.
	rm -rf build
	WHEEL_ARCH=$(ARCH) $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir out/wheel .
	rm -rf build

manifests: setup ## the chart as plain manifests, out/manifests.yaml: VALUES="--values FILE ..." APIS="--api-versions monitoring.coreos.com/v1 ..." NAMESPACE=...
	@mkdir -p out
	$(BIN)/helm template balancer deploy/chart --namespace $(or $(NAMESPACE),default) $(APIS) $(or $(VALUES),--values deploy/chart/examples/try.yaml) > out/manifests.yaml
	@echo "Written: out/manifests.yaml"

lock: setup ## the versions that set-up, CI and images install, anew within what is locked; UPGRADE=1: the newest that pyproject.toml allows
	deploy/lock/lock $(if $(UPGRADE),--upgrade)

newest: ## all tests over the newest of all that pyproject.toml allows, in an environment of its own, out/newest
	@mkdir -p out
	VENV=out/newest NEWEST=1 PYTHON=$(PYTHON) deploy/setup
	out/newest/bin/python -m balancer.kernel.compiled.build
	out/newest/bin/python -m balancer.native.build
	out/newest/bin/pytest -n 3

soak: setup ## 1,000,000 requests while parts die, hang and change, 25 minutes; report in out/soak
	PYTHONPATH=tests $(BIN)/python -m soak

scoreboard: setup ## all policies in all scenarios, some 10 minutes; writes docs/scoreboard
	$(BIN)/balancer scoreboard --jobs 2 --out docs/scoreboard

fidelity: setup ## the simulator held against the live stack, 5 minutes; writes docs/fidelity
	$(BIN)/python -m dev.experiments.live fidelity --page docs/fidelity

switchback: setup ## wlpr, expected_latency, and learned by FILE=policy.npz or by the stack's own log, in turns on the live stack, 20 minutes; writes docs/switchback
	$(BIN)/python -m dev.experiments.live switchback --page docs/switchback $(if $(FILE),--learned $(FILE),--train)

sealed: setup ## a learned policy, FILE=out/mine/policy.npz, on scenarios that nobody has looked at, once, 7 minutes; writes docs/learned
	$(BIN)/python -m dev.experiments.sealed open --file $(or $(FILE),$(error give FILE=, the policy.npz of `balancer train`))

docs: setup ## the page of config fields, and all pages as a site with search, in site
	$(BIN)/python -m balancer.config.page docs/config.md
	@# In an environment of its own: nothing else needs it.
	@[[ -x out/docs/bin/python ]] || $(PYTHON) -m venv out/docs
	out/docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement deploy/lock/docs.txt
	@# Not quiet: strict counts warnings that are told, and no others.
	NO_MKDOCS_2_WARNING=1 out/docs/bin/mkdocs build --strict
	@echo "Written: site/index.html (python -m http.server --directory site)"

proto: setup ## code from the .proto files
	$(MAKE) -C balancer/reports
	$(MAKE) -C envoy

clean: ## remove what the targets made
	rm -rf .venv out site *.egg-info balancer/kernel/compiled/kernel.so balancer/kernel/compiled/kernel.h balancer/native/module.so envoy/module/bounds.h envoy/module/shared.h
