# libiscsi has an iSER initiator of its own on libibverbs. One process a test: a test that hangs takes no other along.
. /lab/lib.sh
must "siw on eth0" rdma_up siw eth0
url=iser://10.0.2.2:$PORT/$TARGET/0
must "iscsi-inq" timeout 60 iscsi-inq "$url"
must "iscsi-readcapacity16" timeout 60 iscsi-readcapacity16 "$url"
families="Read10 Read16 Write10 Write16 Inquiry Mandatory ModeSense6 ReadCapacity10 ReadCapacity16 TestUnitReady Unmap WriteSame16 ReportSupportedOpcodes"
# libiscsi 1.19 does not look at MaxCmdSN over iSER (later ones do): the tests that queue a thousand commands overrun any
# target's receives and crash the program.
iscsi-test-cu --list >/tmp/all 2>&1
bad=0
for f in $families; do
  ran=0
  for t in $(grep "^ALL\.$f\." /tmp/all | grep -v '\.Async$'); do
    ran=$((ran + 1))
    timeout 120 iscsi-test-cu --dataloss -t "$t" "$url" >/tmp/cu.log 2>&1
    rc=$?
    # the program's own status is 0 whatever happened; its summary counts
    failed=$(awk '$1 == "tests" {print $5; exit}' /tmp/cu.log)
    [ $rc = 0 ] && [ "${failed:-1}" = 0 ] && continue
    bad=1
    cp /tmp/cu.log "/share/out/cu-$t.txt"
    echo "## $t: status $rc, failed ${failed:-no summary}: $(grep -a -m1 'FAILED\]' /tmp/cu.log)"
  done
  [ $ran -gt 0 ] || fail "there is no family $f"
  echo "## family $f: $ran tests"
done
[ $bad = 0 ] || fail "a family failed"
must "iscsi-perf" timeout 60 iscsi-perf -t 5 -m 8 -b 8 "$url"
