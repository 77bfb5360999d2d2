# One command each for what people do here every day. Everything runs from this folder; the tools are pinned in
# tools/go.mod, tools/{lint,apilint}/go.mod and deploy/tools/go.mod, and the Go command builds them on first use.

BUF  := go tool -modfile=tools/go.mod buf
SQLC := go tool -modfile=tools/go.mod sqlc
LINT := go tool -modfile=$(CURDIR)/tools/lint/go.mod golangci-lint
API_LINT := go tool -modfile=tools/apilint/go.mod api-linter
NPM  := $(shell command -v npm 2>/dev/null)

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
IMAGE   ?= server

.PHONY: help
help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## Start the whole thing on this machine: PostgreSQL, Pub/Sub, migrations, server.
	go run ./cmd/dev

.PHONY: test
test: ## Run the tests. They start what they need.
	go test ./...
# only template: begin
	cd kit && go test ./...
# only template: end

.PHONY: test-pooler
test-pooler: ## Run most tests that use PostgreSQL once more, through PgBouncer in transaction mode.
	DEEP_TEST=1 STORETEST_POOLER=1 go test -shuffle=on -skip 'TestFailover|TestMove|TestMemory|TestReactorUnderChaos|TestConsoleWithoutDatabase' ./db ./internal/store/... ./internal/outbox ./cmd/server ./deploy/smoke

.PHONY: check-deep
check-deep: ## Run the tests that prove more than a change to a clone can break, too: attacks and failovers. Takes minutes.
	DEEP_TEST=1 go test -race -shuffle=on ./...

.PHONY: check
check: drift lint breaking openapi verify build secrets ## Run exactly what CI runs. Changes no file.
	$(MAKE) --no-print-directory check-deep
# only template: begin
	cd kit && DEEP_TEST=1 go test -race -shuffle=on ./...
# only template: end
# only observe: begin
	cd tools/promql && go vet ./... && go test -count=1 ./...
# only observe: end
	$(MAKE) --no-print-directory test-pooler
	@echo 'make check: OK'

.PHONY: generate
generate: generate-code generate-names ## Generate Go and OpenAPI from api/proto, Go from db, and what has names of internal/names.

.PHONY: generate-code
generate-code:
	$(BUF) build -o /dev/null
	$(SQLC) compile
	@# Both compile, so what is removed here comes back, except what has lost its source.
	find api/proto internal/store/internal/sqlcgen -name '*.pb.go' -o -name '*.pb.gw.go' -o -name '*.sql.go' | xargs rm -f
	$(BUF) generate
	$(SQLC) generate
	gofmt -l -w api/proto internal/store/internal/sqlcgen

.PHONY: generate-names
generate-names:
	go run ./internal/names/generate
# only observe: begin
	go run ./deploy/observe/generate
# only observe: end

.PHONY: drift
drift: ## Check that the generated files are what make generate makes.
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	mkdir -p "$$tmp/internal/store/internal" && \
	cp -R internal/store/internal/sqlcgen "$$tmp/internal/store/internal" && \
	cp -R Makefile go.mod go.sum buf.yaml buf.gen.yaml sqlc.yaml api db third_party $(wildcard kit) "$$tmp" && \
	mkdir "$$tmp/tools" && cp tools/go.mod tools/go.sum "$$tmp/tools" && \
	$(MAKE) --silent -C "$$tmp" generate-code && \
	{ diff -r api "$$tmp/api" && diff -r internal/store/internal/sqlcgen "$$tmp/internal/store/internal/sqlcgen" || \
	{ echo 'The generated files are stale (< here, > new): run make generate.' >&2; exit 1; }; }

.PHONY: lint
lint: ## Lint Go and proto files. The rules are in .golangci.yml, buf.yaml and tools/apilint.
	$(LINT) run
# only template: begin
	cd kit && $(LINT) run
	cd examples/saga && $(LINT) run
# only template: end
	$(BUF) lint
	$(BUF) format api/proto --diff --exit-code
	$(API_LINT) --set-exit-status --output-format github --config tools/apilint/rules.yaml -I api/proto -I third_party/googleapis -I third_party/protovalidate \
		$$(cd api/proto && find . -name '*.proto' | cut -c 3-)

.PHONY: fmt
fmt: ## Format Go and proto files.
	$(LINT) fmt
# only template: begin
	cd kit && $(LINT) fmt
# only template: end
	$(BUF) format api/proto --write

.PHONY: breaking
breaking: ## Check that clients of the released contract still work.
	$(BUF) breaking api/proto --against api/baseline.binpb

.PHONY: release-contract
release-contract: breaking ## Make api/proto the released contract. Part of a release, and only of that.
	$(BUF) build api/proto --exclude-source-info -o api/baseline.binpb

.PHONY: openapi
openapi: $(if $(NPM),tools/openapi/node_modules/.package-lock.json) ## Check that four validators accept api/openapi.json. Needs npm, and the network once.
	$(if $(NPM),REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true $(NPM) --prefix tools/openapi run --silent check,@echo 'npm is not installed: only the tests check api/openapi.json.')

# npm writes this file last: it is there when all packages are.
tools/openapi/node_modules/.package-lock.json: tools/openapi/package-lock.json
	$(NPM) --prefix tools/openapi ci --ignore-scripts --no-audit --no-fund || \
	{ echo 'The validators of OpenAPI are not installed. make openapi needs the network once, and then no more.' >&2; exit 1; }
	touch $@

.PHONY: verify
verify: ## Check the downloaded modules against go.sum.
	go mod verify
# only template: begin
	cd kit && go mod verify
# only template: end

.PHONY: build
build: ## Build everything, and vet what only macOS builds.
	go build ./...
	GOOS=darwin go vet ./...
# only template: begin
	cd kit && go build ./... && GOOS=darwin go vet ./...
# only template: end

.PHONY: image
image: ## Build the container image with Docker, for Cloud Run.
	docker build --platform=linux/amd64 --build-arg=VERSION=$(VERSION) --tag=$(IMAGE):$(VERSION) .

.PHONY: secrets
secrets: ## Look for secrets in the tree.
	go tool -modfile=deploy/tools/go.mod gitleaks dir . --no-banner --redact --verbose

.PHONY: vulns
vulns: ## Ask the Go vulnerability database, over the network, about what we link.
	go tool -modfile=deploy/tools/go.mod govulncheck ./...

# What may be deleted: without the folder, make check does without its steps.
-include lab/lab.mk
# only template: begin

chaos: saga

.PHONY: saga
saga: ## Make three services that sell something together, break everything around them, and check that nothing is lost.
	cd examples/saga && go mod verify && go vet ./... && go test -race ./...
	go run -C examples/saga . --orders 400 --rate 40 --faults
	cd .local/saga/orders && go vet ./... && go test ./internal/archtest ./internal/domain ./internal/event ./internal/names ./internal/store ./cmd/server -run 'Payment|Product|Reaction|Subscriptions|Least|Support|Names|Samples'
# only template: end
