# Shortcuts for development; ./run and ./test do not need make.
.DEFAULT_GOAL := help
.PHONY: help run test check lint types contracts document sdk bench mutate sbom sandbox restore-drill lock environment screenshots
BIN := .venv/bin

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## run the whole service on this machine
	@./run

test: ## run the test suite
	@./test

environment:
	@sh launcher/bootstrap.sh requirements-dev.txt

check: lint types contracts document ## check lint, format, types, import contracts and the OpenAPI document

lint: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: environment
	$(BIN)/mypy app server workers shopper signer sandbox solana_node launcher benchmarks clients/generate.py deploy/sbom.py deploy/cluster/start.py deploy/cluster/room.py
	cd clients/python && ../../$(BIN)/mypy --config-file ../../pyproject.toml --python-version 3.10 purser

contracts: environment
	$(BIN)/lint-imports --no-logo

document: environment
	NETWORK=sandbox $(BIN)/python -m launcher flask --app wsgi documents check

sdk: environment ## generate the core of the Python client from the OpenAPI document
	NETWORK=sandbox $(BIN)/python -m launcher flask --app wsgi documents show | $(BIN)/python clients/generate.py

bench: environment ## measure speed and memory on this machine (ten minutes)
	$(BIN)/python -m benchmarks

screenshots: environment ## take pictures of all states of the owner pages, in var/screenshots (needs a browser)
	NETWORK=sandbox $(BIN)/python -m tests.support.screenshots $(STATES)

mutate: environment ## change the code that handles money and run the tests that should notice (many minutes)
	NETWORK=sandbox $(BIN)/python -m benchmarks.mutation

sbom: environment ## list what the service is made of (CycloneDX) in var/sbom.cdx.json, for a release
	$(BIN)/python deploy/sbom.py var/sbom.cdx.json

sandbox: environment ## run only the local chains and their faucet
	$(BIN)/python -m sandbox --state var/sandbox

restore-drill: ## restore the newest backup of compose.yaml beside its database, and verify it (BACKUP_IDENTITY)
	docker compose run --rm --build restore
	docker compose run --rm --no-deps drill

lock: environment ## compile the requirements: pins and hashes for every platform
	$(BIN)/python -m pip install --quiet --require-hashes -r launcher/uv.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header requirements.in -o requirements.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header requirements-dev.in -c requirements.txt -o requirements-dev.txt
	for client in deploy/*.in deploy/cluster/*.in tests/clients/published/*.in tests/support/shops/*.in; do $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		$$client -o $${client%.in}.txt; done
	for packages in clients/typescript tests/clients/published tests/clients/generators tests/support/shops/evershop; do (cd $$packages && npm install --package-lock-only --ignore-scripts --no-audit \
		--no-fund --omit-lockfile-registry-resolved); done
