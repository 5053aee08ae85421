# Every target prints what it ran. `make help` lists them.
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS  = -s -w -X github.com/sluice-storage/sluice/internal/version.Version=$(VERSION) -X github.com/sluice-storage/sluice/internal/version.Commit=$(COMMIT)
LINT     = $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 5s

# The provider for RDMA adapters is compiled where there are a C compiler and the headers of rdma-core (Debian: libibverbs-dev,
# librdmacm-dev); its libraries are opened at run time. VERBS=no leaves it out: the programs are static then.
CC       ?= cc
headers   = printf '\043include <infiniband/verbs.h>\n\043include <rdma/rdma_cma.h>\n' | $(1) -x c -fsyntax-only - 2>/dev/null
VERBS    ?= $(shell $(call headers,$(CC)) && echo yes || echo no)

# Ceph wants no headers: the shim declares what it calls (internal/ceph/abi.h). Its libraries are opened at run time too. CEPH=no leaves it out.
compiler  = printf '\043include <dlfcn.h>\n' | $(1) -x c -fsyntax-only - 2>/dev/null
CEPH     ?= $(shell $(call compiler,$(CC)) && echo yes || echo no)
comma     = ,
native    = $(if $(filter yes,$(VERBS)),verbs$(comma))$(if $(filter yes,$(CEPH)),ceph$(comma))
NATIVE    = -tags verbs,ceph,netgo,osusergo
ifneq ($(native),)
BUILD     = CGO_ENABLED=1 $(GO) build -tags $(native)netgo,osusergo
TAGS      = -tags $(native)
else
BUILD     = CGO_ENABLED=0 $(GO) build
endif

# Programs that tests start panic at an illegal move of internal/state too.
test race storm: export SLUICE_STRICT_STATES = 1

.PHONY: help build demo test race lint cross fuzz bench bench-report bench-baseline neighbour lab conformance soak storm man deb release clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-15s %s\n", $$1, $$2}' Makefile

build: ## both binaries into bin/, for RDMA adapters too where the headers of rdma-core are, and for Ceph where a C compiler is (VERBS=no, CEPH=no: without)
	$(BUILD) -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/sluiced ./cmd/sluice
	@./bin/sluice --version

demo: build ## an ext4 image to a volume over iSER, SIGKILL, restart, read back, e2fsck
	./bin/sluice demo

test: ## unit, interop and end-to-end tests
	$(GO) run ./test/tool/count -again test/again.txt -- $(GO) test $(TAGS) -timeout 15m ./...

race: ## the same under the race detector
	$(GO) run ./test/tool/count -again test/again.txt -- $(GO) test -race -timeout 20m ./...

lint: ## gofmt, go vet, golangci-lint with the import rules, the house rules
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(LINT) run ./...
	cd test/outside && $(GO) vet ./... && $(LINT) run ./...
ifeq ($(VERBS),yes)
	$(GO) vet $(TAGS) ./transport/... ./internal/version
	$(LINT) run --build-tags verbs ./transport/... ./internal/version
endif
ifeq ($(CEPH),yes)
	$(GO) vet -tags ceph ./internal/ceph ./blockdev/rbd ./target/internal/gateway/radosstore
	$(LINT) run --build-tags ceph ./internal/ceph ./blockdev/rbd ./target/internal/gateway/radosstore
endif

cross: ## both binaries without cgo, amd64 and arm64; with the provider for RDMA adapters and Ceph where there is a compiler for them
	CGO_ENABLED=0 GOARCH=amd64 $(GO) build -o /dev/null ./cmd/sluiced && CGO_ENABLED=0 GOARCH=amd64 $(GO) build -o /dev/null ./cmd/sluice
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build -o /dev/null ./cmd/sluiced && CGO_ENABLED=0 GOARCH=arm64 $(GO) build -o /dev/null ./cmd/sluice
	@for t in amd64:x86_64-linux-gnu-gcc arm64:aarch64-linux-gnu-gcc; do \
		if $(call headers,$${t#*:}); then \
			echo "with RDMA adapters and Ceph: $$t"; \
			for p in sluiced sluice; do CGO_ENABLED=1 CC=$${t#*:} GOARCH=$${t%:*} $(GO) build $(NATIVE) -o /dev/null ./cmd/$$p || exit 1; done; \
		elif [ -n "$$CI" ]; then echo "$${t#*:} or the headers of rdma-core are missing"; exit 1; \
		else echo "without RDMA adapters for $${t%:*}: $${t#*:} or the headers of rdma-core are missing"; fi; \
	done

fuzz: ## every fuzz target for FUZZTIME (5s)
	$(GO) run ./test/tool/fuzz -time $(FUZZTIME)

bench: build ## throughput on loopback as ratios: iSER and NFS over RDMA beside raw pread, NFS over TCP beside nfs-ganesha; fails below a bar
	$(GO) run ./test/tool/bench -enforce

bench-report: build ## the same as a page with plots in dist/bench, beside test/tool/bench/baseline.json (PART=sweep,tgt for parts)
	$(GO) run ./test/tool/bench $(if $(PART),-part $(PART)) -page dist/bench -baseline test/tool/bench/baseline.json

bench-baseline: build ## measure, and make that the baseline (PART for the rows of parts)
	$(GO) run ./test/tool/bench $(if $(PART),-part $(PART)) -write-baseline test/tool/bench/baseline.json

neighbour: build ## what bad peers leave of a good one's throughput and latency
	$(GO) run ./test/suite/faults/neighbour

conformance: build ## libiscsi's iscsi-test-cu, one process a test, beside tgt
	$(GO) run ./test/tool/conformance

fio: build ## fio's job files through the NBD socket and the FUSE file, over iSER; one report in dist/fio
	$(GO) run ./test/tool/fio

lab: ## the kernel lab, every scenario: CLASS=gate for what the gate runs, SCENARIO=name for one
	$(GO) run ./test/tool/lab $(if $(SCENARIO),-scenario $(SCENARIO)) $(if $(CLASS),-class $(CLASS))

soak: ## the long forms: every lab scenario and the longer ones, a minute a fuzz target, an hour of all opcodes
	$(GO) run ./test/tool/lab -class all
	$(GO) run ./test/tool/fuzz -time 60s
	$(GO) run ./test/tool/fuzz -time 60m -run '^\./target/scsi FuzzCommand$$'

storm: ## the random tools: MINUTES (10), SEED (1), TOOLS=name,name, STATE=file to go on from and add up, COUNTS=1 to print its sums
	$(GO) run ./test/tool/storm -minutes $(or $(MINUTES),10) -seed $(or $(SEED),1) $(if $(TOOLS),-tools $(TOOLS)) $(if $(STATE),-state $(STATE)) $(if $(COUNTS),-counts)

man: ## manual pages into dist/man
	$(GO) run ./packaging man

deb: ## a Debian package into dist/, checked by lintian where it is installed
	$(GO) run ./packaging deb

release: ## tarballs for amd64 and arm64 with their bills of materials into dist/
	$(GO) run ./packaging release

clean: ## remove what the other targets built
	rm -rf bin dist
