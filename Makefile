# One command each for what people do here every day. Everything runs from this folder. The Go command downloads and builds the
# tools on first use. The plugins of protogen have their versions in go.mod, beside the libraries of what they generate.

# go run asks for the newest version of a tool each time. So it first asks the module cache, and works without a network. With
# -trimpath a tool is built once for all clones.
RUN         := GOFLAGS=-trimpath GOPROXY=file://$(shell go env GOMODCACHE)/cache/download,$(shell go env GOPROXY) go run
BUF         := $(RUN) github.com/bufbuild/buf/cmd/buf@v1.73.0
# With -O2, the C parser in sqlc takes a minute to build. Without a C compiler, sqlc has it as WebAssembly.
SQLC        := CGO_CFLAGS=-O0 $(RUN) github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1
LINT        := $(RUN) github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GITLEAKS    := $(RUN) github.com/zricethezav/gitleaks/v8@v8.30.1
GOVULNCHECK := $(RUN) golang.org/x/vuln/cmd/govulncheck@v1.9.0
# Downloaded first, because not every proxy lists its versions.
API_LINT    := go mod download github.com/googleapis/api-linter/v2@v2.3.1 && $(RUN) github.com/googleapis/api-linter/v2/cmd/api-linter@v2.3.1
PROTOGEN    := GOFLAGS=-trimpath go tool protogen -I .local/protos
SQLC_FILES = sqlc.yaml $(wildcard options/*/sqlc.yaml)
SQLC_OUT   = internal/pg/internal/sqlcgen internal/store/internal/sqlcgen $(patsubst %/sqlc.yaml,%/internal/sqlcgen,$(wildcard options/*/sqlc.yaml))

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

.PHONY: test-race
test-race: ## Run the tests with the race detector, in random order.
	go test -race -shuffle=on ./...

.PHONY: check
check: drift lint breaking verify build secrets test-race ## Run exactly what CI runs. Changes no file.
	@echo 'make check: OK'

.PHONY: generate
generate: generate-code ## Generate Go and OpenAPI from api/proto, Go from db, and what has names of internal/names.
	go test ./internal/names -run '^TestScript$$' -update

.PHONY: protos
protos: # Copies what api/proto imports from the kit, because buf reads only files below this folder.
	@mkdir -p .local && cp -R "$$(go list -f '{{.Module.Dir}}' example.com/servicekit/openapi)/protos" .local && chmod -R u+w .local/protos

.PHONY: tools
tools: # Builds what generates, beside each other.
	@$(SQLC) version >/dev/null & for tool in $$(go list tool); do GOFLAGS=-trimpath go tool -n $$tool; done >/dev/null; wait

.PHONY: generate-code
generate-code: protos
	rm -rf .local/generated && $(PROTOGEN) -o .local/generated
	for file in $(SQLC_FILES); do $(SQLC) compile -f $$file || exit; done
	@# All compile, so what is removed here comes back, except what has lost its source.
	find api/proto $(SQLC_OUT) -name '*.pb.go' -o -name '*.pb.gw.go' -o -name '*.sql.go' | xargs rm -f
	cp -R .local/generated/. .
	for file in $(SQLC_FILES); do $(SQLC) generate -f $$file || exit; done
	gofmt -l -w api/proto $(SQLC_OUT)

.PHONY: drift
drift: ## Check that the generated files are what make generate makes.
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	tar -c $(SQLC_OUT) internal/pg/queries $(filter options/%,$(SQLC_FILES)) $(wildcard options/*/queries options/*/migrations) | tar -x -C "$$tmp" && \
	cp -R Makefile go.mod go.sum buf.yaml buf.gen.yaml sqlc.yaml api db $(wildcard kit third_party) "$$tmp" && \
	$(MAKE) --silent -C "$$tmp" generate-code && \
	{ stale=; for dir in api $(SQLC_OUT); do diff -r $$dir "$$tmp/$$dir" || stale=1; done; test -z "$$stale" || \
	{ echo 'The generated files are stale (< here, > new): run make generate.' >&2; exit 1; }; }

.PHONY: lint
lint: protos ## Lint Go (or only PACKAGES) and proto files. The rules are in .golangci.yml, buf.yaml and .api-linter.yml.
	$(LINT) run $(PACKAGES)
	$(BUF) lint
	$(BUF) format api/proto --diff --exit-code || { echo 'Run make fmt.' >&2; exit 1; }
	$(API_LINT) --set-exit-status --output-format github --config .api-linter.yml -I api/proto -I .local/protos \
		$$(cd api/proto && find . -name '*.proto' | cut -c 3-)

.PHONY: fmt
fmt: protos ## Format Go and proto files.
	$(LINT) fmt
	$(BUF) format api/proto --write

.PHONY: breaking
breaking: protos ## Check that clients of the released contract still work.
	$(BUF) breaking api/proto --against api/baseline.binpb

.PHONY: release-contract
release-contract: breaking ## Make api/proto the released contract. Part of a release, and only of that.
	$(MAKE) --no-print-directory baseline

.PHONY: baseline
baseline: protos
	$(PROTOGEN) --set api/baseline.binpb

.PHONY: verify
verify: ## Check the downloaded modules against go.sum.
	go mod verify

.PHONY: build
build: ## Build everything, and vet what only macOS builds.
	go build ./...
	GOOS=darwin go vet ./...

.PHONY: image
image: ## Build the container image with Docker, for Cloud Run.
	docker build --platform=linux/amd64 --build-arg=VERSION=$(VERSION) --tag=$(IMAGE):$(VERSION) .

.PHONY: secrets
secrets: ## Look for secrets in the tree.
	$(GITLEAKS) dir . --no-banner --redact --verbose

.PHONY: vulns
vulns: ## Ask the Go vulnerability database, over the network, about what we link.
	$(GOVULNCHECK) ./...

# More work for the targets above, of folders that may be deleted.
-include $(wildcard lab/*.mk deploy/*/*.mk)
