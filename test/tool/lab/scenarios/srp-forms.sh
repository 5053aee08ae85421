# The kernel's SRP initiator to our target over RoCE: every form of data descriptor under fio verify, ext4, xfs, UNMAP.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
. /lab/files/srp-lib.sh
must "rxe on eth0" rdma_up rxe eth0
must "memory for the volume" vol_up 700
configure_srp 320
must "sluiced" srp_daemon_up

# Each way in which ib_srp describes memory: fast registration or one key for all, few descriptors in the command and the rest in a
# table that the target reads, data in the command itself
for how in "" "register_always=N" "register_always=N cmd_sg_entries=1 indirect_sg_entries=255" "use_imm_data=N" "prefer_fr=N register_always=N use_imm_data=N cmd_sg_entries=12"; do
  # shellcheck disable=SC2086
  must "ib_srp $how" srp_up ch_count=2 $how
  host=$(srp_ours_login "$TARGET" allow_ext_sg=1) || fail "login: $(said srp | tail -3)"
  dev=$(srp_disk "$host") || fail "no disk"
  channels=$(cat "/sys/class/scsi_host/$host/ch_count")
  [ "$channels" = 2 ] || fail "$channels channels"
  must "  fio verify, random" fio_verify "$dev" 16m
  must "  fio verify, of 512 bytes to 1 MiB" fio_verify "$dev" 16m --rw=write --bsrange=512-1m
  must "  logout" srp_logout "$host"
  rmmod ib_srp || fail "ib_srp is in use"
done

must "ib_srp" srp_up ch_count=2
host=$(srp_ours_login "$TARGET") || fail "login"
dev=$(srp_disk "$host") || fail "no disk"
m=/mnt/t
mkdir -p $m
tree() {
  mkdir $m/tree && tar -C / -cf - etc/init.d etc/default etc/iscsi lab/lib.sh lab/files/fsx | tar -C $m/tree -xf - && ( cd $m/tree && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums ) &&
    umount $m && forget_cache && mount "$dev" $m && ( cd $m/tree && sha256sum --quiet -c /tmp/sums ) && echo "## $(wc -l </tmp/sums) files"
}
files() { # files FS MKFS...
  local fs=$1
  shift
  must "mkfs.$fs" "$@" "$dev"
  must "  mount" mount "$dev" $m
  must "  a tree, compared after a remount" tree
  must "  fio verify" fio_verify $m/v 8m
  must "  fsx" fsx -seed "${SEED:-7}" -ops 200 $m/x
  rm $m/v $m/x
  must "  fstrim" fstrim -v $m
  must "  umount" umount $m
}
files ext4 mkfs.ext4 -q -F
must "e2fsck" e2fsck -fn "$dev"
files xfs mkfs.xfs -q -f
must "xfs_repair" xfs_repair -n "$dev"

unmapped() {
  local before after
  sync && before=$(stat -c %b /vol/disk.img) && blkdiscard -f "$dev" && after=$(stat -c %b /vol/disk.img) && echo "## $before blocks of 512 bytes before UNMAP, $after behind it" || return
  [ "$before" -gt 1000 ] && [ "$after" -lt $((before / 4)) ] || return
  dd if="$dev" bs=1M count=64 iflag=direct status=none | cmp -n $((64 << 20)) - /dev/zero
}
must "UNMAP gives the space back and reads zeroes" unmapped
must "logout" srp_logout "$host"
must "sluiced ends in good order" daemon_down
