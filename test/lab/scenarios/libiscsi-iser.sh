# libiscsi has an iSER initiator of its own on libibverbs. Every SCSI test of its suite, one process a test: a test that
# hangs or crashes takes no other along.
. /lab/lib.sh
must "siw on eth0" rdma_up siw eth0
url=iser://10.0.2.2:$PORT/$TARGET/0
# Over iSER libiscsi 1.19 takes the memory of a short read from malloc and gives it to its own pool of larger pieces, which
# then overruns it. Without the pool the two agree.
export LIBISCSI_CACHE_ALLOCATIONS=0
ulimit -l unlimited # siw counts registered memory against it, root or not: the suite registers up to 32 MiB
must "iscsi-inq" timeout 60 iscsi-inq "$url"
must "iscsi-readcapacity16" timeout 60 iscsi-readcapacity16 "$url"

# What libiscsi 1.19 itself cannot do over iSER, each seen on the wire. The same tests pass over TCP, see test/conformance.
fault() {
  case $1 in
  ALL.Inquiry.AllocLength | ALL.Inquiry.BlockLimits | ALL.ModeSense6.Residuals)
    echo "it takes what it asked for as what it got: the residual of the response is not looked at" ;;
  *) return 1 ;;
  esac
}
# run TEST. The program logs in and out before a test and after it. When its own end of such a connection comes before the
# target's it frees what it never had, and crashes there, whoever the target is (LIO too). The test counts as it went; a
# program that crashed before its test is started again. Lines at once: a crash would take the buffer along.
run() {
  local i rc
  for i in 1 2 3 4 5 6 7 8; do
    stdbuf -oL timeout 120 iscsi-test-cu --dataloss -t "$1" "$url" >/tmp/cu.log 2>&1
    rc=$?
    why="status $rc: $(grep -a -m1 -o 'FAILE.*\]\|FAILURE.*\|test_.*ASSERT.*' /tmp/cu.log)"
    [ $rc -ge 128 ] && crashes=$((crashes + 1))
    grep -aq '^  Test: .*\.\.\.FAILED' /tmp/cu.log && return 1
    grep -aq '^  Test: .*\.\.\.passed' /tmp/cu.log && return 0
    [ $rc -ge 128 ] || return 1
  done
  return 1
}
iscsi-test-cu --list >/tmp/all 2>&1
all=0 good=0 crashes=0 bad=
# The iSCSI families write PDUs on a TCP socket. Async queues a thousand commands and, over iSER, does not look at MaxCmdSN.
for t in $(grep -Eo "^ALL\.($FAMILIES)\.[A-Za-z0-9]+" /tmp/all | grep -v '^ALL\.iSCSI\|\.Async'); do
  all=$((all + 1))
  if run "$t"; then
    good=$((good + 1))
    continue
  fi
  cp /tmp/cu.log "/share/out/cu-$t.txt"
  if reason=$(fault "$t"); then
    echo "## $t: $why ($reason)"
  else
    echo "## $t: $why"
    bad+="$t "
  fi
done
echo "## score over iser://: $good of $all; libiscsi itself crashed $crashes times"
[ $all -gt 0 ] || fail "there is no such family"
[ -z "$bad" ] || fail "$bad"
must "iscsi-perf" timeout 60 iscsi-perf -t 5 -m 8 -b 8 "$url"
