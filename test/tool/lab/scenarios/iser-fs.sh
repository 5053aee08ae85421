# shellcheck disable=SC2086
# A file system on a file-backed volume. Arguments: iser or tcp, ext4 or xfs. DIGESTS=CRC32C asks for digests (tcp); TREE is
# what is copied, FIO_SIZE what fio writes.
. /lab/lib.sh
transport=$1 fs=$2
[ "$transport" = tcp ] || must "siw on eth0" rdma_up siw eth0
must "iscsid" iscsid_up
options=()
[ -z "${DIGESTS:-}" ] || options=("node.conn[0].iscsi.HeaderDigest=$DIGESTS" "node.conn[0].iscsi.DataDigest=$DIGESTS")
must "login" iscsi_login "$transport" "$TARGET" "10.0.2.2:$PORT" "${options[@]}"
if [ -n "${DIGESTS:-}" ]; then
  must "digests agreed" sh -c "[ \$(iscsiadm -m session -P2 | grep -c 'Digest: $DIGESTS') = 2 ]"
fi
dev=$(disk "$TARGET") || fail "no disk"
m=/mnt/t
mkdir -p $m
fill_tree() {
  mkdir $m/tree && tar -C / -cf - ${TREE:-etc lab} | tar -C $m/tree -xf - &&
    ( cd $m/tree && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums ) &&
    echo "$(wc -l </tmp/sums) files, $(du -sm $m/tree | cut -f1) MiB"
}
check_tree() {
  umount $m && forget_cache && mount "$dev" $m && ( cd $m/tree && sha256sum --quiet -c /tmp/sums )
}
must "mkfs.$fs" "mkfs.$fs" -q "$dev"
must "mount" mount "$dev" $m
must "a tree of files" fill_tree
must "remount, compare" check_tree
must "fio verify, random" fio_verify $m/random "${FIO_SIZE:-16m}"
must "fio verify, sequential" fio_verify $m/sequential "${FIO_SIZE:-16m}" --rw=write --bsrange=128k-128k
rm -r $m/random $m/sequential
must "fstrim" fstrim -v $m
must "compare after fstrim" check_tree
must "umount" umount $m
case $fs in
ext4) must "e2fsck" e2fsck -fn "$dev" ;;
xfs) must "xfs_repair" xfs_repair -n "$dev" ;;
esac
must "logout" iscsi_logout "$TARGET"
