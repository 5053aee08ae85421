# libiscsi has an iSER initiator of its own on libibverbs. One process a test: a test that hangs takes no other along.
. /lab/lib.sh
must "siw on eth0" rdma_up siw eth0
url=iser://10.0.2.2:$PORT/$TARGET/0
must "iscsi-inq" timeout 60 iscsi-inq "$url"
must "iscsi-readcapacity16" timeout 60 iscsi-readcapacity16 "$url"
families="Read10 Read16 Write10 Write16 Inquiry Mandatory ModeSense6 ReadCapacity10 ReadCapacity16 TestUnitReady Unmap WriteSame16 ReportSupportedOpcodes"
# libiscsi 1.19 does not look at MaxCmdSN over iSER (later ones do): the tests that queue a thousand commands
# overrun the target's receives, and crash when the connection ends.
iscsi-test-cu --list >/tmp/all 2>&1
# Its iSER has faults of its own: it takes no note of residuals, and frees what it never had. So a test that fails is
# run against LIO as well, and counts only when it passes there.
lio=iqn.2024-01.lab:lio
must "LIO" lio_up $lio 10.0.2.15 3260 iser 64
run() { # run TEST URL: the program's own status is 0 whatever happened; its summary counts
  timeout 60 iscsi-test-cu --dataloss -t "$1" "$2" >/tmp/cu.log 2>&1
  local rc=$? failed
  failed=$(awk '$1 == "tests" {print $5; exit}' /tmp/cu.log)
  [ $rc = 0 ] && [ "${failed:-1}" = 0 ] && return
  why="status $rc, ${failed:-no summary} failed: $(grep -a -m1 -o 'FAILE.*\]\|FAILURE.*\|invalid pointer\|test_.*ASSERT.*' /tmp/cu.log)"
  return 1
}
# Its heap faults come and go, so a test has three tries at either target.
passes() { run "$@" || run "$@" || run "$@"; }
bad=0
for f in $families; do
  ran=0 passed=0
  for t in $(grep "^ALL\.$f\." /tmp/all | grep -v '\.Async$'); do
    ran=$((ran + 1))
    if passes "$t" "$url"; then
      passed=$((passed + 1))
      continue
    fi
    cp /tmp/cu.log "/share/out/cu-$t.txt"
    ours=$why
    if passes "$t" "iser://10.0.2.15:3260/$lio/0"; then
      bad=1
      echo "## $t: $ours; it passes against LIO"
    else
      echo "## $t: $ours; against LIO $why"
    fi
  done
  [ $ran -gt 0 ] || fail "there is no family $f"
  echo "## family $f: $passed of $ran passed"
done
[ $bad = 0 ] || fail "a test fails that passes against LIO"
must "iscsi-perf" timeout 60 iscsi-perf -t 5 -m 8 -b 8 "$url"
