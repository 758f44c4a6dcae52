# Everything sets itself up on a fresh Debian 12 that has a Rust toolchain: Debian packages and crates, nothing else.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PACKAGES := gcc libc6-dev make git ca-certificates curl bubblewrap openssh-client openssh-server lua5.4
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

.PHONY: help bench-cluster setup build quickstart test lint bench generate e2e e2e-full images

help: ## What there is
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## Installs the Debian packages that are missing
	@missing=$$(dpkg-query -W -f '$${Package} $${db:Status-Status}\n' $(PACKAGES) 2>/dev/null | awk '$$2 == "installed" {print $$1}' | \
	  sort | comm -13 - <(printf '%s\n' $(PACKAGES) | sort)); \
	if [ -n "$$missing" ]; then echo "installing:" $$missing; \
	  as_root=; [ "$$(id -u)" = 0 ] || as_root=sudo; \
	  $$as_root apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$as_root apt-get install -y -qq --no-install-recommends $$missing >/dev/null; fi

build: setup ## Both programs and the demo forge, for development
	cargo build --workspace --bins

quickstart: build ## A whole run against a demo forge, on this machine
	examples/quickstart.sh $(TARGET_DIR)/debug

test: build ## All tests
	cargo test --workspace

lint: setup ## Format, clippy, and which crates may be in which program
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --no-default-features --bin sandboxrun-pod -- -D warnings
	@for crate in ring openssl-sys native-tls rsa; do \
	  ! cargo tree -e normal -i $$crate 2>/dev/null | grep -q . || { echo "$$crate must not be in the program"; exit 1; }; done
	@for crate in kube sqlx reqwest; do \
	  ! cargo tree -e normal --no-default-features -i $$crate 2>/dev/null | grep -q . || { echo "$$crate must not be in the pod program"; exit 1; }; done

generate: build ## CRDs, generated documents, and what of the chart is generated
	cargo run --quiet --bin sandboxrun -- crd --dir crds
	cargo run --quiet --bin sandboxrun -- docs --dir docs
	UPDATE_CHART=1 cargo test --quiet --test chart
	e2e/cluster/build - helm
	charts/install-yaml

images: setup ## All images, without a container engine, as archives
	e2e/images

e2e: setup ## The operator on a real Kubernetes that is built from source (a KUBECONFIG that is set: on that one)
	e2e/run

e2e-full: setup ## The same, and every long test
	E2E_FULL=1 e2e/run

bench: setup ## Speed, against the rivals, in one table (docs/speed.md); ROWS="drift size" for some of it
	RUSTFLAGS="-C target-feature=+crt-static" cargo build --profile pod --no-default-features --bin sandboxrun-pod --target $(HOST)
	SANDBOXRUN_POD_PROGRAM=$(TARGET_DIR)/$(HOST)/pod/sandboxrun-pod cargo bench --bench speed -- $(ROWS)

bench-cluster: setup ## From a run to its pod, under load, on a real API server with fake nodes; ROWS="slow burst"
	e2e/bench/run $(ROWS)
