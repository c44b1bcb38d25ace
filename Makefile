# lilbox: `make run` sets everything up and runs a program in a box, `make test` checks everything.
#
# The kernel and the base image are built once and cached by content below ~/.cache/lilbox
# (LILBOX_CACHE moves the cache). Everything else lands in target/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PREFIX ?= /usr/local
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
SHARE := $(TARGET)/share/lilbox
LILBOX := $(TARGET)/release/lilbox

.PHONY: help deps deps-test build kernel image run test check lint unit e2e soak bench install clean

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

deps: ## install what building and running need (apt, if something is missing)
	@scripts/deps build

deps-test:
	@scripts/deps test

kernel: deps
	@mkdir -p $(SHARE)
	@ln -sfn "$$(kernel-config/build)" $(SHARE)/vmlinux

image: deps
	@mkdir -p $(SHARE)
	@base="$$(CARGO_TARGET_DIR=$(TARGET) rootfs/build)"; \
	ln -sfn "$$base" $(SHARE)/base.erofs; ln -sfn "$$(dirname "$$base")/base.json" $(SHARE)/base.json

build: deps kernel image ## build kernel, base image and programs
	cargo build --locked --release -p cli -p vmm

run: build ## run a program in a box: prints 42 from inside a microVM
	$(LILBOX) run -- python3 -c 'import platform; print("6 * 7 =", 6 * 7, "on Linux", platform.release())'

check: lint ## formatting, lints, docs, licences, shell scripts: no warnings
lint: deps-test
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items
	cargo deny --all-features check bans licenses sources
	cargo machete
	shellcheck -x -P SCRIPTDIR $$(scripts/shell-files)
	kernel-config/test

unit: deps-test ## unit tests and fuzz replay (no virtual machine needed)
	cargo test --locked --workspace --exclude tests

e2e: build deps-test ## end-to-end tests: real kernel, real boxes
	cargo test --locked --release -p tests --test e2e

test: deps deps-test ## everything: checks, unit tests, end-to-end tests
	@scripts/test-all

soak: build deps-test ## the long forms of the end-to-end tests
	LILBOX_SOAK=1 cargo test --locked --release -p tests --test e2e

bench: build deps-test ## measure, side by side with other VMMs where they are installed
	cargo build --locked --release -p tests --bins
	$(TARGET)/release/lilbox-bench --json $(TARGET)/bench.json

install: build ## install below PREFIX (default /usr/local)
	./install.sh --prefix "$(PREFIX)" --from "$(TARGET)"

clean: ## remove build output (not the caches)
	cargo clean
