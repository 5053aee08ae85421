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
must_bear_file_systems
must "logout" srp_logout "$host"
must "sluiced ends in good order" daemon_down
