# The kernel's target and the kernel's initiator, in one guest. Argument: siw or rxe.
. /lab/lib.sh
t=iqn.2024-01.lab:lio p=10.0.2.15:3260
must "$1 on eth0" rdma_up "$1" eth0
must "LIO" lio_up $t 10.0.2.15 3260 iser 256
must "iscsid" iscsid_up
must "login" iscsi_login iser $t $p
dev=$(disk $t) || fail "no disk"
must "fio verify" fio_verify "$dev" 32m
files() {
  mkfs.ext4 -q -F "$dev" && mkdir -p /mnt/t && mount "$dev" /mnt/t && head -c 16M /dev/urandom >/tmp/r && cp /tmp/r /mnt/t/r &&
    umount /mnt/t && forget_cache && mount "$dev" /mnt/t && cmp /tmp/r /mnt/t/r && umount /mnt/t && e2fsck -fn "$dev" >/dev/null 2>&1
}
must "ext4, a copy, remount, compare" files
must "logout" iscsi_logout $t
