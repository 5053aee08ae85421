# A volume in a namespace of the guest's, over iSER and a veth pair, as /dev/ublkbN of the guest's kernel: a file system, fio with
# verification, flush, FUA, discard and write zeroes, a restart of the target under load, and a helper that is killed.
. /lab/lib.sh
sluice=/lab/files/sluice
export XDG_RUNTIME_DIR=/run SLUICE_RUNTIME_DIR=/run/lab
must "veth" veth_up 9000
iqn=iqn.2026-11.io.sluice:lab
truncate -s 256M /tmp/disk.img
cat >/tmp/sluiced.yaml <<E
state_dir: /tmp/state
memory: 96MiB
portals: [{address: "10.9.0.2:3260"}]
volumes: [{name: disk, engine: file, path: /tmp/disk.img, size: 256MiB}]
targets: [{name: "$iqn", luns: [{lun: 0, volume: disk}]}]
E
mkdir -p /tmp/state
serve() {
  # not "ip netns exec", which would take a copy of the mounts along, and keep them
  nsenter --net=/run/netns/far /lab/files/sluiced --config /tmp/sluiced.yaml >>/share/out/sluiced.txt 2>&1 &
  target=$!
  waitfor 60 far sh -c 'ss -Hltn "sport = :3260" | grep -q .' || fail "sluiced: $(cat /share/out/sluiced.txt)"
}
must "target" serve
url=iser://10.9.0.2/$iqn/0

# Without the driver the refusal is a sentence, and nothing is there.
$sluice attach "$url" --as ublk --name none >/tmp/refused 2>&1 && fail "attached without a driver"
grep -q 'modprobe ublk_drv' /tmp/refused || fail "the refusal says: $(cat /tmp/refused)"

must "modprobe" modprobe ublk_drv
attach() { $sluice attach "$url" "$@" --name lab >/tmp/attached 2>/tmp/attached.err && cat /tmp/attached.err && dev=$(cat /tmp/attached) && [ -b "$dev" ]; }
must "attach, ublk chosen by itself" attach
grep -q ublk /tmp/attached.err || fail "chose $(cat /tmp/attached.err)"
must "attached" $sluice attachments
[ "$(blockdev --getsize64 "$dev")" = $((256 << 20)) ] || fail "$dev has $(blockdev --getsize64 "$dev") bytes"
q=/sys/block/${dev#/dev/}/queue
echo "## queues $(ls /sys/block/${dev#/dev/}/mq | wc -l) cache $(cat $q/write_cache) fua $(cat $q/fua) discard $(cat $q/discard_max_bytes) zeroes $(cat $q/write_zeroes_max_bytes)"
[ "$(cat $q/write_cache)" = "write back" ] && [ "$(cat $q/fua)" = 1 ] && [ "$(cat $q/discard_max_bytes)" -gt 0 ] || fail "parameters"
must "fio verify" fio_verify "$dev" 24m
must "fio verify, sync writes" fio_verify "$dev" 1m --sync=1
must "write zeroes" fallocate --zero-range --offset 1048576 --length 1048576 "$dev"
cmp -n 1048576 -i 1048576:0 "$dev" /dev/zero || fail "zeroes"
must "discard" blkdiscard --offset 0 --length 67108864 "$dev"

mkdir -p /mnt/v
must "mkfs" mkfs.ext4 -q -F "$dev"
must "mount" mount "$dev" /mnt/v
$sluice detach lab >/tmp/refused 2>&1 && fail "detached under a file system"
grep -q 'is in use' /tmp/refused || fail "the refusal says: $(cat /tmp/refused)"
tree() { tar -C / -cf - etc lab/lib.sh | tar -C /mnt/v -xf - && (cd /mnt/v && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums); }
must "a tree" tree
restart() { # the target dies under load and comes back
  fio_verify /mnt/v/load 12m --verify_async=1 >/tmp/load.txt 2>&1 &
  local load=$!
  sleep 2
  kill -9 $target
  wait $target 2>/dev/null
  serve
  wait $load || { cat /tmp/load.txt; return 1; }
}
must "fio verify over a restart of the target" restart
must "fstrim" fstrim -v /mnt/v
must "umount" umount /mnt/v
must "detach" $sluice detach lab
[ ! -e "$dev" ] && [ ! -e "${dev/ublkb/ublkc}" ] || fail "$dev is still there"

must "attach again" attach --face ublk
must "mount" mount "$dev" /mnt/v
must "compare" sh -c 'cd /mnt/v && sha256sum --quiet -c /tmp/sums'
must "umount" umount /mnt/v
must "fsck" e2fsck -fn "$dev"

# kill -9 of the helper: the kernel takes the disk away, and the next call what is left.
pid=$($sluice attachments -o json | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')
kill -9 "$pid"
gone() { [ ! -e "$dev" ]; }
must "the kernel takes the disk away" waitfor 30 gone
$sluice attachments
must "the next attach cleans up" attach --face ublk
must "and works" fio_verify "$dev" 8m
pid=$($sluice attachments -o json | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')
kill -9 "$pid"
must "the kernel takes the disk away" waitfor 30 gone
must "detach cleans up" $sluice detach lab
ls /dev/ublk* /sys/class/ublk-char 2>/dev/null
[ -z "$(ls /sys/class/ublk-char 2>/dev/null)" ] || fail "left: $(ls /sys/class/ublk-char)"
[ "$($sluice attachments -o json)" = "[]" ] || fail "left: $($sluice attachments)"
# fio has written over the file system
must "mkfs and mount in one step, by ublk" $sluice mount "$url" /mnt/v --as ublk --mkfs ext4 --force
must "a tree" tree
must "umount" $sluice umount /mnt/v
kill $target && wait $target
must "sluiced ends in good order" test $? = 0
