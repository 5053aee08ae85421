# The smallest thing that has to work: the kernel's iSER initiator with a disk in memory.
. /lab/lib.sh
must "siw on eth0" rdma_up siw eth0
must "iscsid" iscsid_up
must "login" iscsi_login iser "$TARGET" "10.0.2.2:$PORT"
dev=$(disk "$TARGET") || fail "no disk"
must "INQUIRY" sg_inq "$dev"
for page in 0x00 0x80 0x83 0xb0 0xb1 0xb2; do must "VPD page $page" sg_vpd -q -p $page "$dev"; done
must "READ CAPACITY(16)" sg_readcap -16 "$dev"
[ "$(blockdev --getsize64 "$dev")" = $((64 << 20)) ] || fail "the disk has $(blockdev --getsize64 "$dev") bytes"
must "fio verify" fio_verify "$dev" 16m
must "logout" iscsi_logout "$TARGET"
must "login again" iscsi_login iser "$TARGET" "10.0.2.2:$PORT"
dev=$(disk "$TARGET") || fail "no disk"
must "the data are still there" fio_verify "$dev" 16m --verify_only
must "logout" iscsi_logout "$TARGET"
