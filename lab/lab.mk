# Targets of lab/ for the Makefile, which includes this file.

LAB_CONSOLE := ./console # only console

check: lab-check
lint: lab-lint
build: lab-build

.PHONY: lab-check
lab-check: deploy-test ## Test the lab, and break the service for two minutes.
	cd lab && go mod verify && go vet ./... && go test -race -shuffle=on ./cmd/... ./internal/...
	@# Not from the cache, which does not see changes of files outside of this module.
	cd lab && go test -count=1 -shuffle=on -timeout 30m ./bench/... $(LAB_CONSOLE) ./deploytest ./entity ./guarantees ./licenses ./scaffold ./service ./size
	$(MAKE) --no-print-directory chaos

.PHONY: lab-lint
lab-lint:
	cd lab && $(LINT) run ./cmd/... $(LAB_CONSOLE) ./deploytest/... ./entity/... ./guarantees/... ./internal/... ./scaffold/... ./service/... ./size/...

.PHONY: lab-build
lab-build:
	cd lab && go build ./... && GOOS=darwin go vet ./...

.PHONY: bench
bench: ## Measure beside peers, for some 40 minutes (longer turns: PROFILE=long), and renew lab/bench/RESULTS.md.
	cd lab/bench && go run . -profile $(or $(PROFILE),quick) -out results.txt.new && mv results.txt.new results.txt
	$(MAKE) --no-print-directory bench-plots

.PHONY: bench-plots
bench-plots: ## Make the tables and plots of lab/bench/RESULTS.md from results.txt beside it.
	cd lab/bench && go run ./report -in results.txt -doc RESULTS.md -img img

.PHONY: chaos
chaos: ## Break everything around the service, and check every promise (an hour: PROFILE=long; longer: DURATION=85m; again: SEED=N; back to: OLDER=commit).
	go run -C lab ./cmd/chaos --profile $(or $(PROFILE),quick) $(if $(DURATION),--duration $(DURATION)) $(if $(SEED),--seed $(SEED)) $(if $(OUT),--out $(abspath $(OUT))) $(if $(OLDER),--older $(OLDER))

.PHONY: deploy-test
deploy-test: ## Run the scripts of deploy/ with real gcloud against doubles of Google's services; takes minutes.
	@command -v gcloud >/dev/null || echo 'gcloud is not installed: the scripts of deploy/ are not run.'
	cd lab && DEPLOY_TEST=1 go test -count=1 -timeout 30m ./deploytest

.PHONY: size
size: ## Print the size of this repository by folder and kind of file. lab/internal/size/budget.txt has the ceilings.
	go run -C lab ./size

.PHONY: licenses
licenses: ## Renew the list of modules and their licenses, docs/licenses.md.
	go run -C lab ./licenses --source=$(CURDIR) > docs/licenses.md.new && mv docs/licenses.md.new docs/licenses.md
