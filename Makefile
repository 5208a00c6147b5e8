# Every task a person runs. The work is in scripts/; a target only names it.
# Variables: PG_CONFIG=/path/to/pg_config chooses the PostgreSQL; OUTBOX_TEST_BROKERS=host:port uses that Kafka in tests.

.DEFAULT_GOAL := help
.PHONY: help setup build install demo demo-down env test lint test-unit test-exports test-sql test-isolation test-e2e soak bench bench-quick fmt clean

ifdef PG_CONFIG
export PG_CONFIG
endif

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

setup: ## install what is missing on this machine (Debian packages, when root)
	@scripts/setup.sh

build: ## build the extension for the PostgreSQL found
	@scripts/build.sh

install: ## copy the built extension into that PostgreSQL
	@scripts/install.sh

demo: ## the whole story on a private PostgreSQL and a private Kafka, both left running
	@scripts/demo.sh

env: ## print the shell lines to play on with the demo: eval "$(make -s env)"
	@scripts/demo.sh env

demo-down: ## stop the demo's PostgreSQL and Kafka
	@scripts/demo.sh down

test: ## every tier, closing with one line of counts
	@scripts/test.sh

lint: ## formatting, clippy, shellcheck
	@scripts/test.sh lint

test-unit: ## unit and property tests of crates/
	@scripts/test.sh unit

test-exports: ## the install script and the library name the same functions
	@scripts/test.sh exports

test-sql: ## the SQL contract: results and error texts
	@scripts/test.sh sql

test-isolation: ## concurrent sessions, step by step
	@scripts/test.sh isolation

test-e2e: ## end to end: real PostgreSQL, real Kafka
	@scripts/test.sh e2e

soak: ## the guarantee under random faults: make soak SECONDS=1800 SEED=1
	@scripts/soak.sh "$(or $(SECONDS),300)" $(SEED)

bench: ## measure beside peers and floors (40 minutes); BENCH="drain --rounds 2" measures only that, BENCH=flatness part two
	@scripts/bench.sh $(BENCH)

bench-quick: ## a look at three of its rows, small and provisional (a minute, once built)
	@scripts/bench.sh latency drain emit --rounds 1 --scale 0.05

fmt: ## format the Rust code
	@cargo fmt --all

clean: demo-down ## remove what was built and the demo's data
	@scripts/demo.sh remove
	@cargo clean
