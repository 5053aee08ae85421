# The kernel's SRP initiator to our target over RoCE: growth, reservations beside iSER and iSCSI, task management by timeouts, and a
# daemon that is killed under fio.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
. /lab/files/srp-lib.sh
must "rxe on eth0" rdma_up rxe eth0
must "memory for the volumes" vol_up 400
SLOW=iqn.2026-11.io.sluice:slow
configure_srp 128
# a second target whose medium takes its time: what the kernel gives up after its timeout
second_target() { sed -i "s|^volumes: .*|volumes: [{name: disk, path: /vol/disk.img, size: 128MiB}, {name: slow, engine: delay, size: 16MiB, delay: 7s}]|
s|^targets: .*|targets: [{name: \"$TARGET\", alua: implicit, luns: [{lun: 0, volume: disk}]}, {name: \"$SLOW\", luns: [{lun: 0, volume: slow}]}]|" /tmp/sluiced.yaml; }
second_target
must "sluiced" srp_daemon_up

must "ib_srp" srp_up ch_count=2
host=$(srp_ours_login "$TARGET") || fail "login: $(said srp | tail -3)"
dev=$(srp_disk "$host") || fail "no disk"

# The volume grows while it is in use; the host asks and sees it
grown() {
  [ "$(blockdev --getsize64 "$dev")" = $((128 << 20)) ] && sed -i 's/size: 128MiB/size: 192MiB/' /tmp/sluiced.yaml && admin reload &&
    echo 1 >"/sys/block/${dev##*/}/device/rescan" && [ "$(blockdev --getsize64 "$dev")" = $((192 << 20)) ]
}
must "growth" grown

# Reservations hold over SRP, iSER and iSCSI: a key of this host's SRP port keeps the others out
must "iscsid" iscsid_up
must "login, iSER" iscsi_login iser "$TARGET" $ip:3260
iser=$(disk "$TARGET") || fail "no disk by iSER"
reserved() {
  sg_persist -n --out --register --param-sark=0xabc "$dev" && sg_persist -n --out --reserve --param-rk=0xabc --prout-type=3 "$dev" || return
  sg_persist -n --in --read-full-status "$iser" | tee /share/out/full-status.txt
  grep -q 'RDMA initiator port' /share/out/full-status.txt || { echo "the holder is not named as a port of SRP"; return 1; }
  ! dd if=/dev/zero of="$iser" bs=4096 count=1 oflag=direct status=none 2>/dev/null || { echo "iSER wrote past the reservation"; return 1; }
  ! sluice write "iscsi://$ip:3260/$TARGET/0" /lab/lib.sh 2>/dev/null || { echo "iSCSI wrote past the reservation"; return 1; }
  dd if=/dev/zero of="$dev" bs=4096 count=1 oflag=direct status=none || return
  sg_persist -n --out --register --param-sark=0xdef "$iser" && sg_persist -n --out --preempt --param-rk=0xdef --param-sark=0xabc --prout-type=3 "$iser" || return
  ! dd if=/dev/zero of="$dev" bs=4096 count=1 oflag=direct status=none 2>/dev/null || { echo "SRP wrote past the reservation"; return 1; }
  sg_persist -n --out --clear --param-rk=0xdef "$iser"
}
must "reservations over SRP, iSER and iSCSI" reserved
must "logout, iSER" iscsi_logout "$TARGET"

# A command that outlasts its timeout is aborted (ABORT TASK); a reset is asked for by hand (LOGICAL UNIT RESET). The session stays.
shost=$(srp_ours_login "$SLOW") || fail "login to the slow target"
sdev=$(srp_disk "$shost") || fail "no slow disk"
managed() {
  # sd takes a disk off that answers and yet times out on its medium twice
  echo 1000 >/sys/block/"${sdev##*/}"/device/scsi_disk/*/max_medium_access_timeouts || return
  echo 2 >"/sys/block/${sdev##*/}/device/timeout" && echo 1 >"/sys/block/${sdev##*/}/device/eh_timeout" || return
  timeout 120 dd if="$sdev" of=/dev/null bs=4096 count=1 iflag=direct status=none 2>/dev/null
  dmesg | grep -q 'SRP abort called' || { echo "the kernel aborted nothing"; return 1; }
  timeout 60 sg_reset -d "$sdev" || return
  dmesg | grep -q 'SRP reset_device called' || { echo "the kernel reset nothing"; return 1; }
  srp_is "$shost" running
}
must "task management" managed
must "  logout" srp_logout "$shost"

# The daemon is killed while fio writes, and started again: ib_srp reconnects by itself, fio sees no error
must "patience" srp_times "$host" 3 off 600
written() { awk '{print $7}' "/sys/block/${dev##*/}/stat"; }
from=$(written)
fio_verify "$dev" 24m >/tmp/verify 2>&1 &
fio=$!
flows() { [ $(($(written) - from)) -gt 8000 ]; }
waitfor 120 flows || fail "fio does not write"
kill -9 $daemon && wait $daemon
kill -0 $fio || fail "fio was done before the daemon was killed"
must "the path is lost" waitfor 120 srp_is "$host" blocked
must "nothing of the killed daemon is held" waitfor 60 nothing_held
must "sluiced again" srp_daemon_up
must "the path is back" waitfor 180 srp_is "$host" running
must "fio ends well" wait $fio
cat /tmp/verify
must "every block verifies" fio_verify "$dev" 24m --verify_only

# A daemon that ends in good order logs its hosts out
must "sluiced ends in good order" daemon_down
must "  the path is lost" waitfor 60 srp_is "$host" blocked
must "sluiced again" srp_daemon_up
must "  the path is back" waitfor 180 srp_is "$host" running
must "every block still verifies" fio_verify "$dev" 24m --verify_only
must "logout" srp_logout "$host"
must "sluiced ends in good order" daemon_down
