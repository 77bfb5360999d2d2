# Targets of the template itself for the Makefile, which includes this file: its kit, its lab and its examples.

check: openapi lab-check
lint: lab-lint
fmt: kit-fmt
build: lab-build
test: kit-test
verify: kit-verify

NPM := $(shell command -v npm 2>/dev/null)

.PHONY: openapi
openapi: $(if $(NPM),lab/openapi/node_modules/.package-lock.json) ## Check that four validators accept api/openapi.json. Needs npm, and the network once.
	$(if $(NPM),REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true $(NPM) --prefix lab/openapi run --silent check,@echo 'npm is not installed: only the tests check api/openapi.json.')

# npm writes this file last: it is there when all packages are.
lab/openapi/node_modules/.package-lock.json: lab/openapi/package-lock.json
	$(NPM) --prefix lab/openapi ci --ignore-scripts --no-audit --no-fund || \
	{ echo 'The validators of OpenAPI are not installed. make openapi needs the network once, and then no more.' >&2; exit 1; }
	touch $@

.PHONY: kit-test kit-fmt kit-verify
kit-test:
	cd kit && go test ./...
kit-fmt:
	cd kit && $(LINT) fmt
kit-verify:
	cd kit && go mod verify

# lab-waits mostly waits: for alerts, leases and restarts. It runs beside lab-computes, and takes precedence (nice). Each prints when it ends.
.PHONY: lab-check lab-computes lab-waits
lab-check: test-race ## Test the kit and the lab, and break the service for two minutes.
	$(MAKE) --no-print-directory -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) lab-computes lab-waits
lab-computes: deploy-test
	cd kit && DEEP_TEST=1 nice go test -race -shuffle=on ./...
	cd lab && go mod verify && go vet -tags deep ./... && nice go test -race -shuffle=on ./cmd/... ./internal/... ./prove
	@# Not from the cache, which does not see changes of files outside of this module.
	cd lab && nice go test $(if $(filter long,$(PROFILE)),-tags deep) -count=1 -shuffle=on -timeout $(if $(filter long,$(PROFILE)),90m,30m) ./bench/... ./english ./entity ./guarantees ./licenses ./scaffold ./size
	cd lab && nice go test -count=1 -race -shuffle=on -timeout 30m ./catalog ./engine/...
lab-waits:
	cd lab && go test $(if $(filter long,$(PROFILE)),-tags deep) -count=1 -shuffle=on -timeout 30m ./console ./pooler ./service
	@# Says why it skips.
	cd lab && go test -v -count=1 -timeout 30m ./debezium
	cd examples/firestore && go mod verify && go test -count=1 ./...
	$(MAKE) --no-print-directory broker-test
	$(MAKE) --no-print-directory chaos
	go run -C lab ./cmd/chaos --broker kafka
	go run -C lab ./cmd/chaos --relay wal
	$(MAKE) --no-print-directory test-pooler

.PHONY: test-pooler
test-pooler: ## Run each statement once more, through PgBouncer in transaction mode.
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && chmod 755 "$$dir" && go build -C lab -o "$$dir/pooler" ./pooler && export PGTEST_POOLER="$$dir/pooler" && \
	go test -shuffle=on -skip '^TestWithoutDatabase$$' ./db ./internal/store ./internal/outbox ./cmd/server ./options/... && \
	cd lab && go test -count=1 -shuffle=on -timeout 30m ./engine/db

.PHONY: broker-test
broker-test: ## Test what a broker must do on Pub/Sub, kfake and a real Kafka, which KAFKA_BROKERS may name (lab/kafka/README.md).
	cd lab && go test -v -race -count=1 -timeout 10m ./broker

.PHONY: lab-lint
lab-lint:
	cd kit && $(LINT) run
	cd examples/saga && $(LINT) run
	cd examples/firestore && $(LINT) run
	cd lab && $(LINT) run --build-tags deep $$(go list -f '{{.Dir}}' ./... | grep -v /bench)

.PHONY: lab-build
lab-build:
	cd kit && go build ./... && GOOS=darwin go vet ./...
	cd lab && go build ./... && GOOS=darwin go vet ./...
	cd examples/firestore && GOOS=darwin go vet ./...

.PHONY: bench
bench: ## Measure beside peers, for up to 50 minutes (longer turns: PROFILE=long), and renew lab/bench/RESULTS.md.
	cd lab/bench && go run . -profile $(or $(PROFILE),quick) -out results.txt.new
	go test -p 1 -timeout 1h -run '^$$' -bench 'ModeWAL|Tenancy|Sink|Drain|Batch' -benchtime 1x -count 6 ./options/wal ./options/tenancy ./options/relay-http ./internal/store >> lab/bench/results.txt.new
	mv lab/bench/results.txt.new lab/bench/results.txt
	$(MAKE) --no-print-directory bench-tables

.PHONY: bench-go
bench-go: ## Run the Go benchmarks. The results go to bench.txt too, for benchstat.
	{ go test -p 1 -run '^$$' -bench . -benchtime 1x -count 3 -timeout 1h ./internal/store ./cmd/server ./options/reactions && \
	cd lab && go test -p 1 -run '^$$' -bench . -benchtime 1x -count 3 -timeout 1h ./engine/outbox; } | tee bench.txt
	@! grep -q '^FAIL' bench.txt

.PHONY: bench-tables
bench-tables: ## Make the tables of lab/bench/RESULTS.md from results.txt beside it.
	cd lab/bench && go run ./report -in results.txt -doc RESULTS.md

.PHONY: chaos
chaos: saga ## Break everything around the service, and check every promise (an hour: PROFILE=long; longer: DURATION=85m; again: SEED=N; back to: OLDER=commit; BROKER=kafka; RELAY=wal).
	go run -C lab ./cmd/chaos --profile $(or $(PROFILE),quick) $(if $(BROKER),--broker $(BROKER)) $(if $(RELAY),--relay $(RELAY)) $(if $(DURATION),--duration $(DURATION)) $(if $(SEED),--seed $(SEED)) $(if $(OUT),--out $(abspath $(OUT))) $(if $(OLDER),--older $(OLDER))

.PHONY: saga
saga: ## Make three services that sell something together, break everything around them, and check that nothing is lost.
	cd examples/saga && go mod verify && go vet ./... && go test -race ./...
	go run -C examples/saga . --orders 400 --rate 40 --faults
	cd .local/saga/orders && go vet ./... && go test ./internal/archtest ./internal/domain ./internal/event ./internal/names ./internal/store ./cmd/server -run 'Payment|Product|Reaction|Subscriptions|Least|Support|Names|Samples'

.PHONY: deploy-test
deploy-test: ## Run the scripts of deploy/ with real gcloud against doubles of Google's services; takes minutes.
	@command -v gcloud >/dev/null || echo 'gcloud is not installed: the scripts of deploy/ are not run.'
	cd lab && DEPLOY_TEST=1 nice go test -count=1 -timeout 30m ./deploytest

.PHONY: size
size: ## Print the size of this repository by folder and kind of file. lab/internal/size/budget.txt has the ceilings.
	go run -C lab ./size

.PHONY: licenses
licenses: ## Renew the list of modules and their licenses, lab/licenses/licenses.md.
	go run -C lab ./licenses --source=$(CURDIR) > lab/licenses/licenses.md.new && mv lab/licenses/licenses.md.new lab/licenses/licenses.md
