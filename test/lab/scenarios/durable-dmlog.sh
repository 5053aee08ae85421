# The file engine on a device that logs every write and flush: whatever prefix of the log reached the medium, what had
# been acknowledged as durable is in it.
. /lab/lib.sh
steps=12 size=65536 total=$((32 << 20))
modprobe -a dm-mod dm-log-writes loop || fail "modules"
truncate -s $total /tmp/data && truncate -s $((96 << 20)) /tmp/log
data=$(losetup -f --show /tmp/data) && log=$(losetup -f --show /tmp/log) || fail "loop devices"
must "dm-log-writes" dmsetup create --noudevsync logged --table "0 $((total / 512)) log-writes $data $log"
dmsetup mknodes
cat >/tmp/sluiced.yaml <<E
state_dir: /tmp/state
memory: 64MiB
portals: [{address: "127.0.0.1:3260"}]
volumes:
  - {name: d, engine: file, path: /dev/mapper/logged}
targets:
  - {name: "$TARGET", luns: [{lun: 0, volume: d}]}
E
mkdir -p /tmp/state
/lab/files/sluiced --config /tmp/sluiced.yaml >/share/out/sluiced.txt 2>&1 &
daemon=$!
waitfor 60 listening 3260 || fail "sluiced: $(cat /share/out/sluiced.txt)"
step_of() { # step_of N: write it, let the target flush, and only then put the promise into the log
  /lab/files/logreplay -write "$1" -size $size >/tmp/step &&
    /lab/files/sluice write "iscsi://127.0.0.1/$TARGET/0" /tmp/step --offset $(($1 * size)) >/tmp/write.log 2>&1 || { cat /tmp/write.log; return 1; }
  dmsetup message logged 0 mark "durable-$1"
}
for ((i = 0; i < steps; i++)); do must "step $i" step_of $i; done
kill -9 $daemon
wait $daemon 2>/dev/null
must "the log ends" dmsetup remove --noudevsync logged
must "every prefix" /lab/files/logreplay -log "$log" -bytes $total -size $size -steps $steps
# The check has to be able to fail: the same log without its flushes' data breaks the first promise.
dd if=/dev/zero of=/tmp/log bs=512 count=1 conv=notrunc 2>/dev/null
/lab/files/logreplay -log "$log" -bytes $total -size $size -steps $steps 2>/dev/null && fail "a log without a head is taken"
exit 0
