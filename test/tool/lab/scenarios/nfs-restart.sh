# SIGKILL of sluiced while two clients hold locks and work: after the restart they are told, reclaim in grace, and nobody
# gets what they hold; the mounts go on by themselves, open files and all. The host looks into the captures afterwards.
. /lab/lib.sh
. /lab/files/nfs-lib.sh
must "veth" veth_up 1500
must "siw on v0" rdma_up siw v0
must "sluiced" serve "grace: 30s"
must "two clients" clients_up
must "capture" sniff
echo content >/mnt/one/lockfile

held() {
  lk one fcntl x a 0 10 && has a.got && lk two fcntl x b 20 10 && has b.got && lk two flock x never 2>/dev/null && has never.asks && no never.got
}
# writers: one on each mount, a line a time, each line synced; they must not see the restart
writer() { python3 -c '
import os, sys, time
f = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
n = 0
while not os.path.exists("/tmp/enough"):
    os.write(f, b"%s line %06d\n" % (sys.argv[2].encode(), n)); os.fsync(f); n += 1
    open(sys.argv[3], "w").write(str(n))
    time.sleep(0.02)
' "$@"; }
must "locks are held" held
writer /mnt/one/log1 one /tmp/n1 &
w1=$!
two bash -c "$(declare -f writer); writer /mnt/two/log2 two /tmp/n2" &
w2=$!
exec 6</mnt/one/lockfile
waitfor 60 test -s /tmp/n1 && waitfor 60 test -s /tmp/n2 || fail "the writers do not begin"
far_pid=$(pgrep -f '^/lab/files/sluiced' | head -1)
kill -9 "$far_pid"
wait "$served" 2>/dev/null
before1=$(cat /tmp/n1) before2=$(cat /tmp/n2)
sleep 1
began=$SECONDS
must "sluiced again" serve "grace: 30s"
grep -q 'clients held locks' /share/out/sluiced.txt || fail "the new life knows nothing of the clients"
# Clients wait out the grace period by themselves; what they get afterwards is the truth.
lk one fcntl nx c 25 1
lk two fcntl nx d 5 1
lk one fcntl nx e 100 1
must "the writers go on" waitfor 120 sh -c "[ \$(cat /tmp/n1) -gt $((before1 + 5)) ] && [ \$(cat /tmp/n2) -gt $((before2 + 5)) ]"
must "a new lock is given in the end" has e.got 200
echo "given $((SECONDS - began)) s after the restart"
must "what two holds one does not get" has c.no 200
must "what one holds two does not get" has d.no 200
[ $((SECONDS - began)) -ge 28 ] || fail "a new lock was given before the end of grace"
must "released after the restart" go a
lk two fcntl nx d 5 1
must "and taken" has d.got
must "released by two" go b
lk one fcntl x c 25 1
must "and taken by one" has c.got
touch /tmp/enough
must "writer one ends well" wait $w1
must "writer two ends well" wait $w2
whole() { # every line that was synced is there, once
  awk -v who="$2" '{ if ($0 != sprintf("%s line %06d", who, NR-1)) { print "line " NR ": " $0; exit 1 } } END { print NR " lines" }' "$1" && [ "$(wc -l <"$1")" = "$(cat "$3")" ]
}
must "the log of one" whole /export/log1 one /tmp/n1
must "the log of two" whole /export/log2 two /tmp/n2
[ "$(cat <&6)" = content ] || fail "a file that was open all the time cannot be read"
touch /tmp/lk/{c,d,e,never}.go
sleep 1
sniff_end
umount -f -l /mnt/one
two umount -f -l /mnt/two
exit 0
