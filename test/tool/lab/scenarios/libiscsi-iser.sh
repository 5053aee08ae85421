# libiscsi has an iSER initiator of its own on libibverbs. Every SCSI test of its suite, one process a test: a test that
# hangs or crashes takes no other along.
# Argument: siw, with the target on the host, or rxe, with the target here, by way of libibverbs.
. /lab/lib.sh
must "$1 on eth0" rdma_up "$1" eth0
if [ "$1" = siw ]; then
  url=iser://10.0.2.2:$PORT/$TARGET/0
else
  . /lab/files/verbs-lib.sh
  must "memory for the volume" vol_up 200
  configure $ip 64
  sed -i 's/{name: disk,/{name: disk, physical: 512, erase: true,/' /tmp/sluiced.yaml # as in test/tool/conformance
  must "sluiced" daemon_up
  url=iser://$ip:3260/$TARGET/0
fi
# libiscsi 1.19 goes on using what belonged to an iSER connection after it has freed it, and crashes at its next login,
# whoever the target is (LIO too). Where nothing is ever given back it works. Its pool is off because it hands out short
# pieces as long ones.
echo 'void free(void *p) { (void)p; }' >/tmp/keep.c
must "a free that keeps" tcc -shared -o /tmp/keep.so /tmp/keep.c
export LIBISCSI_CACHE_ALLOCATIONS=0
ulimit -l unlimited # siw counts registered memory against it, root or not
must "iscsi-inq" timeout 60 iscsi-inq "$url"
must "iscsi-readcapacity16" timeout 60 iscsi-readcapacity16 "$url"

# What libiscsi 1.19 itself cannot do over iSER, each seen on the wire. The same tests pass over TCP, see test/tool/conformance.
fault() {
  case $1 in
  ALL.Inquiry.AllocLength | ALL.Inquiry.BlockLimits | ALL.ModeSense6.Residuals)
    echo "it takes what it asked for as what it got: the residual of the response is not looked at" ;;
  ALL.ExtendedCopy.Simple | ALL.WriteSame16.Unmap)
    echo "a WRITE of 1 MiB or more is not sent, but its CmdSN is used: the next command skips one" ;;
  ALL.Reserve6.LUNReset | ALL.Reserve6.TargetColdReset | ALL.Reserve6.TargetWarmReset)
    echo "it crashes before it sends a task management request, looking for the direction of a command that is not there" ;;
  ALL.Reserve6.ITNexusLoss)
    echo "its connection outlives iscsi_destroy_context: it closes when the process ends" ;;
  *) return 1 ;;
  esac
}
run() { # run TEST: the program's own status is 0 whatever happened. Lines at once: a crash would take the buffer along.
  LD_PRELOAD=/tmp/keep.so stdbuf -oL timeout 120 iscsi-test-cu --dataloss -t "$1" "$url" >/tmp/cu.log 2>&1
  local rc=$?
  why="status $rc: $(grep -a -m1 -o 'FAIL.*' /tmp/cu.log)"
  [ $rc = 0 ] && [ "$(awk '$1 == "tests" {print $3, $5; exit}' /tmp/cu.log)" = "1 0" ]
}
iscsi-test-cu --list >/tmp/all 2>&1
all=0 good=0 again= bad=
# The iSCSI families write PDUs on a TCP socket. Async queues a thousand commands and, over iSER, does not look at MaxCmdSN.
for t in $(grep -Eo "^ALL\.($FAMILIES)\.[A-Za-z0-9]+" /tmp/all | grep -v '^ALL\.iSCSI\|\.Async'); do
  all=$((all + 1))
  if run "$t"; then
    good=$((good + 1))
    continue
  fi
  first=$why
  # Its event loop takes a slow answer for an error now and then: once more, and said so.
  if ! fault "$t" >/dev/null && run "$t"; then
    good=$((good + 1)) again+="$t "
    echo "## $t: $first; passed the second time"
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
echo "## score over iser://: $good of $all${again:+; the second time: $again}"
[ $all -gt 0 ] || fail "there is no such family"
[ -z "$bad" ] || fail "$bad"
# It does not look at MaxCmdSN either: more than 32 at a time, the window that it is given, would be lost. Where its connection ends it
# waits for ever, SIGTERM or not.
must "iscsi-perf" timeout -k 5 90 iscsi-perf -t 5 -m 8 -b 8 "$url"
must "iscsi-perf, 32 at a time, at random" timeout -k 5 90 iscsi-perf -t 5 -m 32 -b 8 -r "$url"
[ "$1" = siw ] || must "sluiced ends in good order" daemon_down
