# The target's machine loses its power, CUTS times, below a file system of the guest's. Arguments: iser or tcp, ext4 or xfs.
# The session does not outlast the loss here (REPLACEMENT_S): Linux takes no notice of POWER ON, and a file system that went
# on would believe in writes that are gone. So each call fails until the file system is mounted again.
. /lab/lib.sh
transport=$1 fs=$2 m=/mnt/t
[ "$transport" = tcp ] || must "siw on eth0" rdma_up siw eth0
must "iscsid" iscsid_up
must "login" iscsi_login "$transport" "$TARGET" "10.0.2.2:$PORT"
dev=$(disk "$TARGET") || fail "no disk"
mkdir -p $m
must "mkfs.$fs" "mkfs.$fs" -q "$dev"
must "mount" mount "$dev" $m
mkdir $m/kept && sync $m/kept || fail "a directory"
: >/tmp/acked

# keep ROUND: files that are synced one by one, each noted once it is; ends with the first error
keep() {
  local n
  for ((n = 0; ; n++)); do
    seq "$((n * 7))" "$((n * 7 + 300 + RANDOM % 9000))" >"/tmp/part" 2>/dev/null
    cp /tmp/part "$m/kept/$1-$n" && sync "$m/kept/$1-$n" || return 0
    sha256sum </tmp/part | awk -v f="$1-$n" '{print $1 "  " f}' >>/tmp/acked
  done 2>/tmp/keep.err
}
# risk: writes of a file that are never synced
risk() { while dd if=/dev/urandom of=$m/risk bs=64k count=16 oflag=direct conv=notrunc; do :; done 2>/dev/null; }
kept() { (cd $m/kept && sha256sum --quiet -c /tmp/acked); }
check() {
  case $fs in
  ext4) e2fsck -fn "$dev" ;;
  xfs) xfs_repair -n "$dev" ;;
  esac
}
# lose ROUND: work, the loss, and what calls say of it
lose() {
  keep "$1" &
  keeper=$!
  risk &
  risker=$!
  noted() { [ "$(wc -l </tmp/acked)" -ge $((had + 3)) ]; }
  had=$(wc -l </tmp/acked)
  waitfor 120 noted || fail "no file is synced: $(cat /tmp/keep.err)"
  must "$1: power off" on_host off
  ended() { ! kill -0 $keeper && ! kill -0 $risker; }
  waitfor 120 ended || fail "$1: nobody hears of the loss"
  cat /tmp/keep.err
  sync $m/risk 2>/tmp/sync.err && fail "$1: sync says that what is lost is durable"
  must "$1: umount" umount $m
  must "$1: power on" on_host on
  running() { [ "$(session_state)" = LOGGED_IN ] && [ "$(cat "/sys/block/${dev##*/}/device/state")" = running ]; }
  waitfor 180 running || fail "$1: the session does not come back"
  forget_cache
}
# attach: where the target has seen a flush fail before its end, the first flush after it says so once more, to the journal's
# recovery as it may be
attach() {
  mount "$dev" $m && return
  dmesg | tail -20 | grep -q 'Add. Sense: Write error' || return
  echo "## the mount hears of the loss"
  mount "$dev" $m
}
for ((i = 1; i <= CUTS; i++)); do
  lose $i
  must "$i: mount" attach
  must "$i: $(wc -l </tmp/acked) synced files" kept
  umount $m && forget_cache || fail "umount"
  check >/tmp/fsck 2>&1 || { cat /tmp/fsck; fail "$i: the file system"; }
  must "$i: mount again" mount "$dev" $m
done
dmesg | grep -c 'Power-on or device reset occurred' | sed 's/^/## times that the kernel heard of POWER ON: /'
# The check is able to fail: a medium that only says that it has flushed.
must "a lie" on_host lie
for ((i = 1; i <= 5; i++)); do
  lose "lie-$i"
  mount "$dev" $m 2>/tmp/lied && kept >>/tmp/lied 2>&1 && check >>/tmp/lied 2>&1 && continue
  tail -2 /tmp/lied
  echo "## the lie is found in round $i"
  umount $m 2>/dev/null
  iscsi_logout "$TARGET"
  exit 0
done
fail "a medium that lies is not found"
