# libiscsi has an iSER initiator of its own on libibverbs. One process a test: a test that hangs takes no other along.
. /lab/lib.sh
must "siw on eth0" rdma_up siw eth0
url=iser://10.0.2.2:$PORT/$TARGET/0
must "iscsi-inq" timeout 60 iscsi-inq "$url"
must "iscsi-readcapacity16" timeout 60 iscsi-readcapacity16 "$url"
families="Read10 Read16 Write10 Write16 Inquiry Mandatory ModeSense6 ReadCapacity10 ReadCapacity16 TestUnitReady Unmap WriteSame16 ReportSupportedOpcodes"
bad=0
for f in $families; do
  timeout 120 iscsi-test-cu --dataloss -t "ALL.$f" "$url" >/tmp/cu.log 2>&1
  rc=$?
  # the program's own status is 0 whatever happened; its summary counts
  sum=$(awk '$1 == "tests" {print "ran " $3 ", failed " $5; exit}' /tmp/cu.log)
  failed=$(awk '$1 == "tests" {print $5; exit}' /tmp/cu.log)
  echo "## family $f: ${sum:-no summary}, status $rc"
  if [ $rc != 0 ] || [ "${failed:-1}" != 0 ]; then
    bad=1
    cp /tmp/cu.log "/share/out/cu-$f.txt"
    grep -A3 'FAIL' /tmp/cu.log | head -20
  fi
done
[ $bad = 0 ] || fail "a family failed"
must "iscsi-perf" timeout 60 iscsi-perf -t 5 -m 8 -b 8 "$url"
