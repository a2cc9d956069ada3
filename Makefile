# Short names for those who like make; ./run and ./test need neither make nor this file.
.DEFAULT_GOAL := help
.PHONY: help run test check lint types contracts document bench sandbox lock environment
BIN := .venv/bin

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## the whole service on this machine
	@./run

test: ## the whole suite
	@./test

environment:
	@sh launcher/bootstrap.sh requirements-dev.txt

check: lint types contracts document ## lint, format, types, import contracts, OpenAPI document

lint: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: environment
	$(BIN)/mypy app workers sandbox launcher benchmarks

contracts: environment
	$(BIN)/lint-imports --no-logo

document: environment
	NETWORK=sandbox $(BIN)/python -m launcher flask --app wsgi documents check

bench: environment ## figures of speed and memory on this machine (minutes)
	$(BIN)/python -m benchmarks

sandbox: environment ## the local chains and their faucet alone
	$(BIN)/python -m sandbox --state var/sandbox

lock: environment ## compile the requirements anew: pins and hashes for every platform
	$(BIN)/python -m pip install --quiet --require-hashes -r launcher/uv.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header requirements.in -o requirements.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header requirements-dev.in -c requirements.txt -o requirements-dev.txt
	for client in legacy solana; do $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		tests/clients/published/x402-$$client.in -o tests/clients/published/x402-$$client.txt; done
