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
# The check has to be able to fail: here is a promise that nothing was written for.
truncate -s $((8 << 20)) /tmp/log2
log2=$(losetup -f --show /tmp/log2) || fail "loop device"
must "a second log" dmsetup create --noudevsync lied --table "0 $((total / 512)) log-writes $data $log2"
must "a broken promise" dmsetup message lied 0 mark "durable-$steps"
must "the second log ends" dmsetup remove --noudevsync lied
/lab/files/logreplay -log "$log2" -bytes $total -size $size -steps $((steps + 1)) >/tmp/lied 2>&1 && fail "a promise that was not kept is taken"
grep -q 'would break the promise' /tmp/lied || fail "the broken promise is not what is said: $(cat /tmp/lied)"
exit 0
