# What the NFS scenarios with two clients share:  . /lab/files/nfs-lib.sh  after lib.sh
#
# The server is in namespace far. Client one is the guest itself, on v0, by RDMA; client two is a namespace with a lock
# manager, rpcbind and statd of its own, on w0, by TCP. Both call themselves "lab".

# serve [CONFIGURATION LINE...]: sluiced in far with one export, its lines go to the log
sluiced=/lab/files/sluiced
serve() {
  cat >/tmp/sluiced.yaml <<E
state_dir: /tmp/state
memory: 96MiB
exports:
  - path: /export
    name: /data
    clients: [{match: 10.0.0.0/8, squash: none}]
files:
  tcp: "0.0.0.0:2049"
  rdma: "10.9.0.2:20049"
  rpcbind: embedded
$(printf '  %s\n' "$@")
E
  mkdir -p /export /tmp/state
  far $sluiced --config /tmp/sluiced.yaml >>/share/out/sluiced.txt 2>&1 &
  served=$!
  waitfor 60 far sh -c 'ss -Hltn "sport = :20049" | grep -q .'
}
server() { pgrep -f "^$sluiced --config" | head -1; }
# killed: SIGKILL; when it returns nothing of the server is left
killed() {
  kill -9 "$(server)" || return
  wait "$served" 2>/dev/null
  :
}

# two_up: the second client
two_up() {
  ip link add w0 type veth peer name w1 && ip netns add two && ip link set w1 netns far && ip link set w0 netns two || return
  ip -n far addr add 10.8.0.2/24 dev w1 && ip -n far link set w1 up || return
  ip -n two addr add 10.8.0.1/24 dev w0 && ip -n two link set w0 up && ip -n two link set lo up || return
  # ip netns exec gives it mounts of its own; the kernel looks for rpcbind's socket there
  ip netns exec two bash -c 'mount -t tmpfs none /run && mkdir -p /run/rpcbind /run/lock && mount -t tmpfs none /var/lib/nfs &&
    mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/rpc_pipefs && rpcbind -w && rpc.statd && echo $$ >/tmp/two.pid && exec sleep infinity' &
  waitfor 30 test -s /tmp/two.pid
}
two() { nsenter -t "$(cat /tmp/two.pid)" -m -n "$@"; }
one() { "$@"; }

clients_up() {
  nfs_up && mkdir -p /run/rpcbind /var/lib/nfs/sm /var/lib/nfs/sm.bak && rpcbind -w && rpc.statd && two_up || return
  mkdir -p /mnt/one /mnt/two
  # No port but RDMA's is said: rpcbind in far knows the others
  timeout 120 mount -t nfs -o rdma,port=20049,vers=3,mountproto=tcp,timeo=600 10.9.0.2:/data /mnt/one || return
  two timeout 120 mount -t nfs -o proto=tcp,vers=3,mountproto=tcp,timeo=600 10.8.0.2:/data /mnt/two
}

# sniff: what both clients and the server say to each other, but for RDMA
sniff() {
  tcpdump -i v0 -s 0 -B 8192 -U -w /share/out/one.pcap not port 20049 >/tmp/sniff1 2>&1 &
  sniffing="$!"
  two tcpdump -i w0 -s 0 -B 8192 -U -w /share/out/two.pcap >/tmp/sniff2 2>&1 &
  sniffing="$sniffing $!"
  waitfor 20 grep -q listening /tmp/sniff1 && waitfor 20 grep -q listening /tmp/sniff2
}
sniff_end() { sleep 1; kill $sniffing 2>/dev/null; wait $sniffing 2>/dev/null; :; }

# lk.py KIND MODE NAME FILE [START LENGTH]: takes a lock and says so in /tmp/lk/NAME.got with the time, in ms since the
# guest began; gives it back when /tmp/lk/NAME.go is there, and says so in NAME.gone. KIND is flock or fcntl; MODE x or s
# waits, nx and ns do not. A refused one says NAME.no.
mkdir -p /tmp/lk
cat >/tmp/lk.py <<'P'
import fcntl, os, sys, time
kind, mode, name, path = sys.argv[1:5]
start, length = (int(sys.argv[5]), int(sys.argv[6])) if len(sys.argv) > 6 else (0, 0)
def say(what, text=""):
    with open("/tmp/lk/.%s" % name, "w") as f: f.write("%d %s" % (time.monotonic() * 1000, text))
    os.rename("/tmp/lk/.%s" % name, "/tmp/lk/%s.%s" % (name, what))
f = open(path, "r+")
how = fcntl.LOCK_EX if "x" in mode else fcntl.LOCK_SH
if "n" in mode: how |= fcntl.LOCK_NB
def lock(how):
    if kind == "flock": fcntl.flock(f, how)
    else: fcntl.lockf(f, how, length, start)
say("asks")
try: lock(how)
except OSError as e:
    say("no", e.strerror); sys.exit(3)
say("got")
while not os.path.exists("/tmp/lk/%s.go" % name): time.sleep(0.01)
say("gone")
lock(fcntl.LOCK_UN)
say("unlocked")
P
# lk CLIENT KIND MODE NAME [START LENGTH]: starts lk.py in the background
lk() {
  local c=$1 kind=$2 mode=$3 name=$4
  shift 4
  rm -f /tmp/lk/"$name".*
  $c python3 /tmp/lk.py "$kind" "$mode" "$name" /mnt/"$c"/lockfile "$@" &
}
at() { cut -d' ' -f1 "/tmp/lk/$1" 2>/dev/null; }
has() { waitfor "${2:-120}" test -e "/tmp/lk/$1"; }
go() { touch "/tmp/lk/$1.go" && has "$1.unlocked"; }
no() { [ ! -e "/tmp/lk/$1" ] || { echo "$1 is there: $(cat "/tmp/lk/$1")"; return 1; }; }
