# Linux's iSER initiator uses our target over RoCE, by way of libibverbs, and writes, while the adapter is deleted and made again. The
# session ends with a clear sentence and comes back, and fio sees no error and finds each block as it wrote it.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
echo 1800 >/proc/sys/kernel/hung_task_timeout_secs # a deletion waits for the programs that have the adapter open
must "rxe on eth0" rdma_up rxe eth0
must "memory for the volume" vol_up 300
configure $ip 128
must "sluiced" daemon_up
REPLACEMENT_S=1200
must "iscsid" iscsid_up
must "login" iscsi_login iser "$TARGET" $ip:3260
dev=$(disk "$TARGET") || fail "no disk"

written() { awk '{print $7}' "/sys/block/${dev##*/}/stat"; }
busy() { [ $(($(written) - from)) -gt 2000 ]; }
# The session's number at the target, by the provider verbs; empty while there is none
number() { admin session list | awk '/verbs/{print $1}' | head -1; }
serves() { [ "$(cat /sys/class/iscsi_session/session*/state)" = LOGGED_IN ] && [ -n "$(number)" ]; }
gone() { ! admin session list | awk '{print $1}' | grep -qx "$1"; }
back() {
  waitfor 600 serves && return
  session_state
  tail -5 /tmp/iscsid.log /share/out/sluiced.txt
  rdma resource show cm_id
  return 1
}

from=$(written) before=$(number)
[ -n "$before" ] || fail "the session is not known to be of the provider verbs"
fio_verify "$dev" 16m --rate=,1m >/tmp/disk.log 2>&1 & # slowly enough to be at it for long
load=$!
waitfor 300 busy && kill -0 $load || fail "fio does not write: $(cat /tmp/disk.log)"

# The driver may keep the deletion waiting for as long as a program has the adapter open; the daemon's end is the latest.
(rdma link delete rdma0; echo $? >/tmp/deleted) >/tmp/deletion.log 2>&1 &
must "the target says that the adapter is gone" waitfor 120 said 'the RDMA device (of a listener is gone|is gone|was removed)'
must "session $before ends" waitfor 120 gone "$before"
# ib_iser is on the same adapter: its goodbye may come before our own event.
must "the record says so" waitfor 30 said 'session (lost.*"reason": "verbs: |ended.*"reason": "iscsi: the initiator closed)'
if waitfor 30 test -e /tmp/deleted; then
  echo "## the deletion is complete while the daemon runs"
else
  echo "## the deletion waits for the daemon"
  must "sluiced ends in good order" eval "kill $daemon && wait $daemon"
fi
must "the deletion is complete" waitfor 120 test -e /tmp/deleted
[ "$(cat /tmp/deleted)" = 0 ] && [ ! -e /sys/class/infiniband/rdma0 ] || fail "the deletion: $(cat /tmp/deleted /tmp/deletion.log)"
said 'the RDMA device'
kill -0 $load || fail "fio ended while there was no adapter: $(cat /tmp/disk.log)"
must "rxe again" rdma_up rxe eth0
if kill -0 "$daemon" 2>/dev/null; then
  must "the daemon listens again" waitfor 120 daemon_serves
else
  must "sluiced again" daemon_up
fi
must "the session is back" back
over() {
  local rc=0
  wait $load || rc=$?
  cat /tmp/disk.log
  return $rc
}
must "fio ends well" over
must "files are served, too" sluice ls "nfs+rdma://$ip/data?nfsport=20050&mountport=2050&provider=verbs"
must "logout" iscsi_logout "$TARGET"
must "sluiced ends in good order" daemon_down
