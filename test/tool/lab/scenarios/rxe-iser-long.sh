# The kernel's iSER initiator to our target over RoCE, by way of libibverbs: fio, ext4 and xfs, UNMAP, three transports at one
# portal, and a daemon that is killed under fio.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
must "rxe on eth0" rdma_up rxe eth0
must "memory for the volume" vol_up 700
configure $ip 512
must "sluiced" daemon_up
must "iscsid" iscsid_up
must "login" iscsi_login iser "$TARGET" $ip:3260
dev=$(disk "$TARGET") || fail "no disk"
# Send with Invalidate: ib_iser notes each key that a response has taken back, when it is told to talk
invalidated() {
  local talk=/sys/module/ib_iser/parameters/debug_level n before
  before=$(dmesg | grep -c 'remote invalidation')
  echo 3 >$talk && dd if="$dev" of=/dev/null bs=128k count=8 iflag=direct status=none
  echo 0 >$talk
  n=$(($(dmesg | grep -c 'remote invalidation') - before))
  echo "## $n keys of 8 reads were invalidated by Send"
  [ $n -ge 8 ]
}
must "Send with Invalidate" invalidated
must "fio verify of the disk, random" fio_verify "$dev" 16m
must "fio verify of the disk, sequential" fio_verify "$dev" 16m --rw=write --bsrange=128k-1m

must_bear_file_systems

# One portal, three ways to the same bytes
three() {
  head -c 1M /dev/urandom >/tmp/piece && sluice write "iser://$ip:3260/$TARGET/0?provider=verbs" /tmp/piece --offset 3MiB || return
  local u
  for u in "iscsi://$ip:3260/$TARGET/0" "iser://$ip:3260/$TARGET/0" "iser://$ip:3260/$TARGET/0?provider=verbs"; do
    rm -f /tmp/back && sluice read "$u" /tmp/back --offset 3MiB --length 1MiB && cmp /tmp/piece /tmp/back || { echo "$u"; return 1; }
  done
  dd if="$dev" bs=1M skip=3 count=1 iflag=direct status=none | cmp - /tmp/piece
}
must "RoCE, iSCSI/TCP and software iWARP at one portal" three

# The daemon is killed while fio writes, and started again: the initiator recovers by itself, fio sees no error
written() { awk '{print $7}' "/sys/block/${dev##*/}/stat"; }
from=$(written)
fio_verify "$dev" 24m >/tmp/verify 2>&1 &
fio=$!
flows() { [ $(($(written) - from)) -gt 8000 ]; }
waitfor 120 flows || fail "fio does not write"
kill -9 $daemon && wait $daemon
kill -0 $fio || fail "fio was done before the daemon was killed"
lost() { [ "$(session_state)" != LOGGED_IN ]; }
must "the session is lost" waitfor 90 lost
must "nothing of the killed daemon is held" waitfor 60 nothing_held
must "sluiced again" daemon_up
back() { [ "$(session_state)" = LOGGED_IN ]; }
must "the session is back" waitfor 180 back
must "fio ends well" wait $fio
cat /tmp/verify
must "every block verifies" fio_verify "$dev" 24m --verify_only
# It has to be able to fail: bytes of the backing file are changed behind the target
spoilt() { dd if=/dev/zero of=/vol/disk.img bs=4096 seek=1000 count=4 conv=notrunc status=none && ! fio_verify "$dev" 24m --verify_only; }
must "a change behind the target is found" spoilt
must "logout" iscsi_logout "$TARGET"
must "sluiced ends in good order" daemon_down
