# The kernel's lock managers of two clients against ours: flock and fcntl, waiters, cancel, a lost connection, a client that
# restarts. The host looks into the captures afterwards.
. /lab/lib.sh
. /lab/files/nfs-lib.sh
must "veth" veth_up 1500
must "siw on v0" rdma_up siw v0
must "sluiced" serve
must "two clients" clients_up
must "capture" sniff
echo content >/mnt/one/lockfile

# ranges KIND-less: fcntl ranges conflict where they overlap, whoever asks
ranges() {
  lk one fcntl x a 0 10 && has a.got || return
  lk two fcntl nx b 5 10 && has b.no && no b.got || return
  lk two fcntl ns b 9 1 && has b.no || return
  lk two fcntl nx b 10 10 && has b.got || return
  lk one fcntl nx c 15 1 && has c.no || return
  lk one fcntl ns c 20 0 && has c.got && lk two fcntl ns d 30 5 && has d.got || return
  lk two fcntl nx e 40 1 && has e.no || return
  # F_GETLK says who
  two python3 -c 'import fcntl,struct
r = struct.unpack("hhqqi4x", fcntl.fcntl(open("/mnt/two/lockfile","r+"), fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 3, 1, 0)))
assert r[0] == fcntl.F_WRLCK and (r[2], r[3]) == (0, 10), r' || return
  go a && go b && go c && go d || return
  lk two fcntl nx b 0 0 && has b.got && go b
}

# soon FIRST MS...: within 1 s. The first time the server has to ask for the client's port, which a busy machine's rpcbind may
# take long to say; never as late as a client's own polling, every 30 s, would be.
soon() {
  echo "$*"
  [ "$1" -lt 10000 ] || return
  shift
  [ "$(printf '%s\n' "$@" | sort -n | tail -1)" -lt 1000 ]
}
# handover KIND FROM TO
handover() {
  local i all=()
  for i in 1 2 3; do
    lk "$2" "$1" x a && has a.got && lk "$3" "$1" x b && has b.asks && sleep 1 && no b.got && go a && has b.got || return
    all+=($(($(at b.got) - $(at a.gone))))
    go b || return
  done
  soon "${all[@]}"
}

# cancelled: who is killed while it waits never gets the lock
cancelled() {
  lk one fcntl x a && has a.got || return
  lk two fcntl x b && has b.asks && sleep 1 || return
  local pid
  pid=$(pgrep -f 'lk.py fcntl x b ' | tail -1)
  kill -TERM "$pid" && waitfor 30 sh -c "! kill -0 $pid" || return
  go a && no b.got && lk two fcntl nx c && has c.got && go c && lk one flock nx d && has d.got && go d
}

# several: each of four waiters in turn, then three readers at once
several() {
  local w
  lk one fcntl x a && has a.got || return
  for w in w1 w2; do lk two fcntl x $w && has $w.asks || return; done
  lk one fcntl x w3 && has w3.asks && lk two fcntl x w4 && has w4.asks && sleep 1 || return
  go a || return
  local left="w1 w2 w3 w4" now
  for _ in 1 2 3 4; do
    waitfor 60 sh -c 'cd /tmp/lk; for w in '"$left"'; do [ -e $w.got ] && exit; done; exit 1' || { echo "none of $left gets the lock"; return 1; }
    now=
    for w in $left; do [ ! -e /tmp/lk/$w.got ] || now="$now $w"; done
    [ "$(wc -w <<<"$now")" = 1 ] || { echo "$now have the lock"; return 1; }
    left=$(for w in $left; do [ $w = $now ] || echo -n "$w "; done)
    touch /tmp/lk/${now# }.go
  done
  for w in w1 w2 w3 w4; do has $w.unlocked || return; done
  lk one fcntl x a && has a.got || return
  for w in r1 r2; do lk two fcntl s $w && has $w.asks || return; done
  lk one fcntl s r3 && has r3.asks && sleep 1 && go a || return
  for w in r1 r2 r3; do has $w.got || return; done
  for w in r1 r2 r3; do go $w || return; done
}

# reconnected: a waiter whose connection breaks keeps its place
reconnected() {
  lk one fcntl x a && has a.got && lk two fcntl x b && has b.asks && sleep 1 || return
  # shuts down the server's sockets to client two
  python3 - "$(pgrep -f '^/lab/files/sluiced' | head -1)" <<'P' || return
import ctypes, os, socket, sys
pid, cut = int(sys.argv[1]), 0
c = ctypes.CDLL(None, use_errno=True)
p = c.syscall(434, pid, 0)  # pidfd_open
for fd in os.listdir("/proc/%d/fd" % pid):
    try:
        if not os.readlink("/proc/%d/fd/%s" % (pid, fd)).startswith("socket:"): continue
        s = socket.socket(fileno=c.syscall(438, p, int(fd), 0))  # pidfd_getfd
        if "10.8.0.1" in s.getpeername()[0]: s.shutdown(socket.SHUT_RDWR); cut += 1
    except OSError: pass
print("%d connections cut" % cut)
sys.exit(cut == 0)
P
  two ls /mnt/two >/dev/null && go a && has b.got || return
  [ $(($(at b.got) - $(at a.gone))) -lt 15000 ] && go b
}

# restarted: a client whose status monitor says that it has restarted loses its locks, and nobody else does
restarted() {
  lk two fcntl x a 0 10 && has a.got && lk one fcntl x b 20 10 && has b.got && lk one fcntl x c 0 10 && has c.asks && sleep 1 && no c.got || return
  two sm-notify -f -d >/share/out/sm-notify.txt 2>&1 &
  local notifier=$!
  has c.got || return
  lk two fcntl nx d 20 1 && has d.no || return
  kill $notifier 2>/dev/null
  go b && go c && touch /tmp/lk/a.go
}

must "ranges" ranges
for k in fcntl flock; do
  must "$k: one to two" handover $k one two
  must "$k: two to one" handover $k two one
done
must "cancelled" cancelled
must "several waiters" several
must "a lost connection" reconnected
must "a client restarts" restarted
sniff_end
must "umount" umount /mnt/one
two umount /mnt/two || fail "umount two"
