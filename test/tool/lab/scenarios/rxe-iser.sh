# The kernel's iSER initiator to our target over RoCE, by way of libibverbs.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
must "rxe on eth0" rdma_up rxe eth0
must "memory for the volume" vol_up 700
configure $ip 256
must "sluiced" daemon_up
must "iscsid" iscsid_up
must "login" iscsi_login iser "$TARGET" $ip:3260
dev=$(disk "$TARGET") || fail "no disk"
must "INQUIRY" sg_inq "$dev"
admin session list | tee /share/out/sessions.txt
grep -qi verbs /share/out/sessions.txt || fail "the session is not known to be of the provider verbs"

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

m=/mnt/t
mkdir -p $m
tree() {
  mkdir $m/tree && tar -C / -cf - etc lab/lib.sh | tar -C $m/tree -xf - && ( cd $m/tree && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums ) &&
    umount $m && forget_cache && mount "$dev" $m && ( cd $m/tree && sha256sum --quiet -c /tmp/sums )
}
must "mkfs.ext4" mkfs.ext4 -q -F "$dev"
must "mount" mount "$dev" $m
must "a tree, compared after a remount" tree
must "fio verify" fio_verify $m/v 16m
rm $m/v
must "fstrim" fstrim -v $m
must "umount" umount $m
must "e2fsck" e2fsck -fn "$dev"
must "logout" iscsi_logout "$TARGET"
must "sluiced ends in good order" daemon_down
