# Every target prints what it ran. `make help` lists them.
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS  = -s -w -X github.com/sluice-storage/sluice/internal/version.Version=$(VERSION) -X github.com/sluice-storage/sluice/internal/version.Commit=$(COMMIT)
LINT     = $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 5s

.PHONY: help build demo test race lint cross fuzz bench neighbour lab conformance soak storm man deb release clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' Makefile

build: ## both binaries into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/sluiced ./cmd/sluice

demo: build ## an ext4 image to a volume over iSER, SIGKILL, restart, read back, e2fsck
	./bin/sluice demo

test: ## unit, interop and end-to-end tests
	$(GO) run ./test/count -- $(GO) test -timeout 15m ./...

race: ## the same under the race detector
	$(GO) run ./test/count -- $(GO) test -race -timeout 20m ./...

lint: ## gofmt, go vet, golangci-lint with the import rules, the house rules
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(LINT) run ./...

cross: ## both binaries without cgo, amd64 and arm64
	CGO_ENABLED=0 GOARCH=amd64 $(GO) build -o /dev/null ./cmd/sluiced && CGO_ENABLED=0 GOARCH=amd64 $(GO) build -o /dev/null ./cmd/sluice
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build -o /dev/null ./cmd/sluiced && CGO_ENABLED=0 GOARCH=arm64 $(GO) build -o /dev/null ./cmd/sluice

fuzz: ## every fuzz target for FUZZTIME (5s)
	$(GO) run ./test/fuzz -time $(FUZZTIME)

bench: build ## throughput on loopback as ratios: iSER and NFS over RDMA beside raw pread, NFS over TCP beside nfs-ganesha; fails below a bar
	$(GO) run ./test/bench -enforce

neighbour: build ## what bad peers leave of a good one's throughput and latency
	$(GO) run ./test/faults/neighbour

conformance: build ## libiscsi's iscsi-test-cu, one process a test, beside tgt
	$(GO) run ./test/conformance

fio: build ## fio's job files through the NBD socket and the FUSE file, over iSER; one report in dist/fio
	$(GO) run ./test/fio

lab: ## the kernel lab, every scenario: CLASS=gate for what the gate runs, SCENARIO=name for one
	$(GO) run ./test/lab $(if $(SCENARIO),-scenario $(SCENARIO)) $(if $(CLASS),-class $(CLASS))

soak: ## the long forms: every lab scenario and the longer ones, a minute a fuzz target, an hour of all opcodes
	$(GO) run ./test/lab -class all
	$(GO) run ./test/fuzz -time 60s
	$(GO) run ./test/fuzz -time 60m -run '^\./target/scsi FuzzCommand$$'

storm: ## the random tools: MINUTES (10), SEED (1), TOOLS=name,name, STATE=file to go on from and add up, COUNTS=1 to print its sums
	$(GO) run ./test/storm/run -minutes $(or $(MINUTES),10) -seed $(or $(SEED),1) $(if $(TOOLS),-tools $(TOOLS)) $(if $(STATE),-state $(STATE)) $(if $(COUNTS),-counts)

man: ## manual pages into dist/man
	$(GO) run ./packaging man

deb: ## a Debian package into dist/, checked by lintian where it is installed
	$(GO) run ./packaging deb

release: ## tarballs for amd64 and arm64 with their bills of materials into dist/
	$(GO) run ./packaging release

clean: ## remove what the other targets built
	rm -rf bin dist
