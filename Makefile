# SPDX-License-Identifier: Apache-2.0
# The front door: each target sets up what it needs (scripts/setup.sh), builds with CMake and goes.
# Use `cmake --preset dev|release|minimal` and `cmake --build --preset ...` directly for everything finer.
PART ?=

.DEFAULT_GOAL := help
.PHONY: help run test check-long clean

help: ## this list
	@grep -E '^[a-z-]+: *##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+): *## */  make \1\t/' | expand -t 20

run: ## build, fetch a small language model, answer three questions with it
	@scripts/run.sh

test: ## build everything, run the quick tests (at most 10 minutes on 2 cores)
	@scripts/test.sh

check-long: ## the long tests; PART=name runs one part, PART=list names them
	@scripts/check-long.sh $(PART)

clean: ## remove build/ (the model stays in its cache)
	@rm -rf build
