# The kernel's SRP over RoCE, ib_srp and ib_srpt, both ends on the guest's own address. No Sluice.
. /lab/lib.sh
. /lab/files/srp-lib.sh
ip=10.0.2.15
must "rxe on eth0" rdma_up rxe eth0
must "ib_srpt" srpt_up $ip 5555 256
must "ib_srp" srp_up ch_count=2
must "login" srp_login "$srpt_id" $ip 5555
host=$(srp_hosts)
dev=$(srp_disk "$host") || fail "no disk"
must "INQUIRY" sg_inq "$dev"
must "fio verify" fio_verify "$dev" 32m
must "mkfs.ext4" mkfs.ext4 -q -F "$dev"
must "e2fsck" e2fsck -fn "$dev"
must "logout" srp_logout "$host"
# It has to be able to fail: a target port that is not there
! srp_login 00000000000000010000000000000002 $ip 5555 2>/dev/null || fail "a login to a port that is not there"
