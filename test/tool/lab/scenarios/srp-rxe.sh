# The kernel's SRP initiator to our target over RoCE, by way of libibverbs: the line that our tool prints is the one that it takes.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
. /lab/files/srp-lib.sh
must "rxe on eth0" rdma_up rxe eth0
must "memory for the volume" vol_up 300
configure_srp 48
must "sluiced" srp_daemon_up
must "ib_srp" srp_up ch_count=2
srp_ours
host=$(srp_ours_login "$TARGET") || fail "login: $(said srp | tail -3)"
dev=$(srp_disk "$host") || fail "no disk"
must "INQUIRY" sg_inq "$dev"
admin session list | tee /share/out/sessions.txt
grep -qi srp /share/out/sessions.txt || fail "the session is not known to be of SRP"
must "fio verify" fio_verify "$dev" 8m
must "mkfs.ext4" mkfs.ext4 -q -F "$dev"
must "e2fsck" e2fsck -fn "$dev"
# The file behind the target has what the host wrote, seen by another way in
must "the file system by iSER" sh -c "sluice read iser://$ip:3260/$TARGET/0 /tmp/copy >/dev/null 2>&1 && e2fsck -fn /tmp/copy"
# It has to be able to fail: bytes of the backing file are changed behind the target
must "a pattern" fio_verify "$dev" 4m
spoilt() { dd if=/dev/zero of=/vol/disk.img bs=4096 seek=100 count=4 conv=notrunc status=none && ! fio_verify "$dev" 4m --verify_only >/dev/null; }
must "a change behind the target is found" spoilt
must "logout" srp_logout "$host"
must "the session is gone" waitfor 30 no_session
must "sluiced ends in good order" daemon_down
