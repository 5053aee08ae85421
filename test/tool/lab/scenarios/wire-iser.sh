# Two guests with RoCE on the wire between them: the kernel's initiator here, our target at the other end (wire-target.sh). Packets
# are lost, the wire is cut for some seconds, and until the session is lost; every block is verified.
# LAB_ACK="2s 500ms 60ms": how fast the disk is written under loss with each of these as the target's ack_timeout.
# LAB_LIO=1: a disk of LIO's has the same loss to bear after ours, which tells what is the devices' part in a failure.
. /lab/lib.sh
peer=10.8.0.2
must "the wire" wire_up
must "rxe on eth1" rdma_up rxe eth1
must "the target is there" await target
must "ping" ping -c 2 -W 5 $peer
must "iscsid" iscsid_up
# What rxe misses of the answer to a Read it asks for again only when its timer ends, seconds later with what the connection
# manager gives a RoCE path; Writes and Sends are repeated at once. So the disk's writes, which our target reads, are slow under loss,
# and sizes are small; and a ping of iSCSI's may take that long.
iscsi_conf 'node.conn\[0\].timeo.noop_out_interval' 5
iscsi_conf 'node.conn\[0\].timeo.noop_out_timeout' 30
must "login" iscsi_login iser "$TARGET" $peer:3260
dev=$(disk "$TARGET") || fail "no disk"
# No command is given up: an abort that meets a session whose connection is made anew ends 6.1's ib_iser by a NULL in iser_dma_unmap_task_data.
echo 600 >"/sys/block/${dev##*/}/device/timeout"

counters() { local c; for c in /sys/class/infiniband/rdma0/ports/1/hw_counters/*; do case ${c##*/} in sent_pkts | *err* | *seq* | duplicate*) echo -n "${c##*/}=$(cat "$c") " ;; esac; done; echo; }
both_ends() {
  echo "## this end: $(session_state), $(counters)"
  awk '{print "## disk: in flight " $9 ", sectors written " $7 ", read " $3}' "/sys/block/${dev##*/}/stat"
  tc -s qdisc show dev eth1 | grep -A1 netem
  other counters_and_sessions
}
# within SECONDS COMMAND...: the command; when it takes longer, how both ends are
within() {
  local s=$1 job
  shift
  "$@" >/tmp/within 2>&1 &
  job=$!
  gone() { ! kill -0 $job 2>/dev/null; }
  waitfor "$s" gone || { both_ends; return 1; }
  cat /tmp/within
  wait $job
}
must "fio verify" within 200 fio_verify "$dev" 8m

lossy() { tc qdisc add dev eth1 root netem loss "$1" && other tc qdisc add dev eth1 root netem loss "$1"; }
sound() { lost=$(tc -s qdisc show dev eth1 | grep -o 'dropped [0-9]*' | head -1) && tc qdisc del dev eth1 root && other tc qdisc del dev eth1 root; }
under_loss() { # under_loss LOSS SIZE DISK LABEL
  must "$4$1 of the packets are lost, both ways" lossy "$1"
  must "$4  fio verify" within 400 fio_verify "$3" "$2"
  must "$4  the wire is sound again" sound
  echo "## $lost here; $(counters)"
  [ "${lost#dropped }" -gt 0 ] || fail "the wire lost nothing"
}
under_loss 0.1% 4m "$dev" ""
under_loss 1% 512k "$dev" ""
[ "$(session_state)" = LOGGED_IN ] || fail "the session is $(session_state)"
logged_in() { [ "$(session_state)" = LOGGED_IN ]; }
# timed ACK_TIMEOUT: how fast a volume is written under loss when both adapters wait so long for an acknowledgement. By our initiator:
# ib_iser of 6.1 that aborts a command of a session which was lost meanwhile takes the kernel with it (iser_unreg_mem_fastreg).
timed() {
  local loss
  must "ack_timeout $1" other with_ack "$1"
  must "  the session is back" waitfor 120 logged_in
  for loss in 0.1% 1%; do
    must "  $loss is lost, both ways" lossy $loss
    echo "## ack_timeout $1, $loss lost:"
    timeout -k 5 120 sluice bench "iser://$peer:3260/$TARGET/0?provider=verbs" --ack-timeout "$1" --rw randwrite --bs 64k --iodepth 8 --runtime 15s --size 16m --destroy || echo "## it ends with status $?"
    must "  the wire is sound again" sound
  done
}
[ -z "${ACK:-}" ] || PATH=/lab/files:$PATH
for ack in ${ACK:-}; do timed "$ack"; done
if [ -n "${LIO:-}" ]; then
  must "LIO: login" iscsi_login iser "$LIO" $peer:3270
  lio=$(disk "$LIO") || fail "no disk of LIO's"
  under_loss 0.1% 4m "$lio" "LIO: "
  under_loss 1% 512k "$lio" "LIO: "
  must "LIO: logout" iscsi_logout "$LIO"
fi

# under_fio LABEL COMMAND...: the command comes while fio writes; then the session is there, and fio has seen no error
under_fio() {
  local label=$1 from fio
  shift
  written() { awk '{print $7}' "/sys/block/${dev##*/}/stat"; }
  from=$(written)
  fio_verify "$dev" 16m >/tmp/verify 2>&1 &
  fio=$!
  writes() { [ $(($(written) - from)) -gt 4000 ]; }
  waitfor 120 writes || fail "$label: fio does not write"
  must "$label" "$@"
  kill -0 $fio || fail "$label: fio was done before"
  must "  the session is back" waitfor 240 sh -c '[ "$(cat /sys/class/iscsi_session/session*/state)" = LOGGED_IN ]'
  fio_gone() { ! kill -0 $fio 2>/dev/null; }
  waitfor 300 fio_gone || { both_ends; fail "$label: fio does not end"; }
  must "  fio ends well" wait $fio
  cat /tmp/verify
  must "  every block verifies" within 200 fio_verify "$dev" 16m --verify_only
}
cut_for() { lossy 100% && sleep "$1" && sound; }
# The order for the other end goes by another way than the wire
under_fio "the wire is cut for 6 s" cut_for 6
lost_it() { [ "$(session_state)" != LOGGED_IN ]; }
# Not by `ip link set eth1 down`: what the connection manager sends then fails on rxe of 6.1, whose queue pair for management
# receives nothing any more, for good.
cut_until_lost() {
  lossy 100% && waitfor 180 lost_it || { both_ends; return 1; }
  must "  no session is left there" other waitfor 120 no_session
  must "  the wire is sound again" sound
}
under_fio "the wire is cut until the session is lost" cut_until_lost
# It has to be able to fail: bytes of the backing file are changed behind the target
spoilt() { other spoil && ! fio_verify "$dev" 16m --verify_only; }
must "a change behind the target is found" spoilt
must "logout" iscsi_logout "$TARGET"
must "the target ends in good order" other daemon_down
must "the other guest may end" other end
