# Two guests with RoCE on the wire between them, the initiators here, our target and file server at the other end (wire-target.sh). The
# target's interface goes down and comes back while Linux's iSER initiator (a file system on its disk), Linux's NFS client and our own
# initiator (attach) write. The sessions end with a clear sentence and come back, no program sees an error, and every block and file is as it
# was written.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
peer=10.8.0.2
echo 1800 >/proc/sys/kernel/hung_task_timeout_secs # requests wait while a port is down
export XDG_RUNTIME_DIR=/run
modprobe nbd nbds_max=4 || fail "nbd"
must "the wire" wire_up
must "rxe on eth1" rdma_up rxe eth1
must "the target is there" await target
must "ping" ping -c 2 -W 5 $peer
REPLACEMENT_S=1200
must "iscsid" iscsid_up
iscsi_conf 'node.conn\[0\].timeo.noop_out_interval' 5
iscsi_conf 'node.conn\[0\].timeo.noop_out_timeout' 20
must "login" iscsi_login iser "$TARGET" $peer:3260
dev=$(disk "$TARGET") || fail "no disk"
mkdir -p /mnt/e /mnt/n
# The file system has the first half of the disk, our initiator the other
must "mkfs and mount" eval 'mkfs.ext4 -q -F $dev 60m && mount $dev /mnt/e'
must "attach" eval 'sluice attach "iser://$peer:3260/$TARGET/0?provider=verbs" --face device --name lab --output json >/tmp/attached'
nbd=$(grep -o '/dev/nbd[0-9]*' /tmp/attached | head -1)
must "NFS client" nfs_up
nfs_mount() { timeout 120 mount -t nfs -o rdma,port=20050,vers=3,nolock,mountport=2050,mountproto=tcp $peer:/data /mnt/n && grep -q 'proto=rdma' /proc/mounts; }
must "mount over RDMA" nfs_mount
head -c 2M /dev/urandom >/tmp/data && cp /tmp/data /mnt/e/before && cp /tmp/data /mnt/n/before && sync -f /mnt/e || fail "a file before"

# load WHAT...: fio begins to write, slowly enough to be at it for long, each on its own
load() {
  local w
  jobs=()
  for w; do
    case $w in
    disk) fio_verify /mnt/e/v 12m --rate=,"$rate" >/tmp/load.disk 2>&1 & ;;
    files) fio_verify /mnt/n/v 12m --rate=,"$rate" >/tmp/load.files 2>&1 & ;;
    ours) fio_verify "$nbd" 12m --offset=64m --rate=,"$rate" >/tmp/load.ours 2>&1 & ;;
    esac
    jobs+=("$w:$!")
  done
}
rate=512k
written() { awk '{print $7}' "/sys/block/${1##*/}/stat"; }
all_write() {
  local j
  for j in "${jobs[@]}"; do
    case ${j%:*} in
    disk) [ $(($(written "$dev") - from_disk)) -gt 2000 ] ;;
    files) other test -s /vol/export/v ;;
    ours) [ $(($(written "$nbd") - from_ours)) -gt 2000 ] ;;
    esac || return
  done
}
under_load() { # under_load LABEL "disk files ours" COMMAND...
  local label=$1 what=$2 j
  shift 2
  from_disk=$(written "$dev") from_ours=$(written "$nbd")
  before=$(other session_numbers)
  load $what
  waitfor 300 all_write || fail "$label: not all write: $(tail /tmp/load.*)"
  for j in "${jobs[@]}"; do kill -0 "${j#*:}" || fail "$label: fio of ${j%:*} has ended: $(tail /tmp/load.*)"; done
  "$@"
  [ $# = 0 ] || must "  $label: the sessions are back" waitfor 300 back $what
  now=$(other session_numbers)
  echo "## sessions before: $before; now: $now"
  for j in "${jobs[@]}"; do must "  $label: fio of ${j%:*} ends well" ended "$j"; done
  rm -f /mnt/n/v
}
ended() {
  local rc=0
  wait "${1#*:}" || rc=$?
  cat "/tmp/load.${1%:*}"
  return $rc
}
# back WHAT...: Linux's session, and ours with a number it had not before
back() {
  local w
  for w; do
    case $w in
    disk) [ "$(session_state)" = LOGGED_IN ] ;;
    ours) ours_up ;;
    esac || return
  done
}
ours_up() { sluice attachments lab -o json | grep -q '"state": *"active"'; }
files_are_well() { forget_cache; cmp /tmp/data /mnt/e/before && { ! mountpoint -q /mnt/n || cmp /tmp/data /mnt/n/before; }; }

target_down() {
  must "the target's interface goes down" other port_down
  must "  the target says so" other waitfor 60 said_down
  must "  all its sessions end" other waitfor 60 no_session
  must "  and the record says why" other ended_by_port
  sleep "${DOWN_S:-6}"
  must "the target's interface comes back" other port_up
}
under_load "the target's interface" "disk files ours" target_down
must "what was written before is there" files_are_well

must "umount" umount /mnt/n
must "umount of the disk" umount /mnt/e
must "logout" iscsi_logout "$TARGET"
sluice attachments lab
must "every block verifies" fio_verify "$nbd" 12m --offset=64m --verify_only
# It has to be able to fail: bytes of the backing file are changed behind the target
spoilt() { other spoil 17000 && ! fio_verify "$nbd" 12m --offset=64m --verify_only; }
must "a change behind the target is found" spoilt
must "detach" sluice detach lab
must "no session is left" other waitfor 60 no_session
must "e2fsck of the backing file" other e2fsck -fn /vol/disk.img
must "the target ends in good order" other daemon_down
must "the other guest may end" other end
