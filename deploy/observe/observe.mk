# Work of the alerts and the dashboard for targets of the Makefile, which includes this file.

generate: generate-observe
check: check-promql

.PHONY: generate-observe
generate-observe: generate-code
	go run ./deploy/observe/generate

.PHONY: check-promql
check-promql:
	cd deploy/observe/promql && go vet ./... && go test -count=1 ./...
