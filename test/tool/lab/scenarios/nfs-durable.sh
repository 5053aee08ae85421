# Power failures of the file server: what no COMMIT covered is gone from the disk, the client sees another write verifier and
# sends it again, and nothing that fsync, O_SYNC or a change of names returned for is lost. Servers that lie are found out.
#
# The server's ext4 lies on dm-flakey. A cut stops sluiced, lets the device drop every write from then on, kills sluiced, and
# mounts the file system anew from what had reached it: the kernel's own dirty pages are lost as in a machine that has lost
# power. A stopped process answers nobody, so that what passes over a device that forgets is never acknowledged.
. /lab/lib.sh
. /lab/files/nfs-lib.sh
must "veth" veth_up 1500
must "siw on v0" rdma_up siw v0
size=$((200 << 11)) # sectors
disk_up() {
  modprobe -a loop dm-mod dm-flakey && truncate -s $((size * 512)) /tmp/disk && disk=$(losetup -f --show /tmp/disk) || return
  dmsetup create --noudevsync power --table "0 $size linear $disk 0" && dmsetup mknodes && mkfs.ext4 -q -F /dev/mapper/power || return
  mkdir -p /export && mount /dev/mapper/power /export || return
  # Nothing is written back by the clock: what reaches the disk, somebody asked for
  echo 0 >/proc/sys/vm/dirty_writeback_centisecs
}
table() { dmsetup suspend --noflush --nolockfs --noudevsync power && dmsetup load power --table "0 $size $1" && dmsetup resume --noudevsync power; }
# stopped PID: no thread of it runs, nor can before SIGCONT: one that waits for the disk (D) stops on its way out of the kernel
stopped() {
  local t
  for t in /proc/"$1"/task/*/stat; do
    case $(sed 's/.*) //' "$t" | cut -c1) in [TDZX]) ;; *) return 1 ;; esac
  done
}
cut_power() {
  local pid
  pid=$(server) && kill -STOP "$pid" && waitfor 60 stopped "$pid" || return
  table "flakey $disk 0 0 1 1 drop_writes" && killed || return
  umount /export && table "linear $disk 0" && echo 1 >/proc/sys/vm/drop_caches && mount /dev/mapper/power /export
}
must "ext4 on dm-flakey" disk_up
must "sluiced" serve
must "client" nfs_up
mkdir -p /mnt/rdma /mnt/tcp
# write=eager: what a program writes is sent at once, and committed when it says fsync, not before
o=vers=3,nolock,mountport=2049,mountproto=tcp,timeo=600,write=eager
must "mount over RDMA" timeout 120 mount -t nfs -o rdma,port=20049,$o 10.9.0.2:/data /mnt/rdma
must "mount over TCP" timeout 120 mount -t nfs -o proto=tcp,port=2049,$o 10.9.0.2:/data /mnt/tcp

# lost MOUNT: data is sent and not committed, the power goes, fsync sends it again, and the power goes once more
lost() {
  python3 - "$1" <<'P' || return
import ctypes, os, sys, time
m = sys.argv[1]
c = ctypes.CDLL(None, use_errno=True)
c.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
bad = []
def check(ok, says):
    if not ok: bad.append(says); print(says, flush=True)
def count(what):
    on = False
    for l in open("/proc/self/mountstats"):
        w = l.split()
        if w and w[0] == "device": on = w[4] == m
        elif on and w and w[0] == what + ":": return int(w[1])
def ask(what):  # the script does it
    open("/tmp/ask." + what, "w").close()
    while os.path.exists("/tmp/ask." + what): time.sleep(0.05)
def at_server(name): return open("/export/" + name, "rb").read()
a = os.open(m + "/kept", os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
b = os.open(m + "/sent", os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
kept, sent = os.urandom(2 << 20), os.urandom(3 << 20)
os.write(a, kept); os.fsync(a)
# over what is safe: new bytes in the middle that nobody has committed
os.pwrite(a, sent[:500000], 700000)
os.write(b, sent)
before = count("COMMIT")
for f, n in ((a, len(kept)), (b, len(sent))):
    if c.sync_file_range(f, 0, n, 2 | 4) != 0: raise OSError(ctypes.get_errno(), "sync_file_range")
check(count("COMMIT") == before, "the client has committed by itself")
check(at_server("sent") == sent, "the server does not have what was sent")
ask("cut")
left = at_server("sent")
check(left != sent, "nothing was lost: the cut proves nothing")
check(at_server("kept") == kept, "kept: fsync returned for it, and it is not there")
print("%d of %d bytes are left of what was sent" % (len(left), len(sent)))
ask("serve")
writes = count("WRITE")
os.fsync(b); os.fsync(a)
again = count("WRITE") - writes
print("%d WRITEs sent again" % again)
ask("cut")
want = bytearray(kept); want[700000:1200000] = sent[:500000]
for name, w in (("kept", bytes(want)), ("sent", sent)):
    got = at_server(name)
    check(got == w, "%s: fsync returned for %d bytes, and %d are there, not the same" % (name, len(w), len(got)))
check(again > 0, "nothing was sent again")
ask("serve")
if not bad: check(os.pread(b, len(sent), 0) == sent, "the client reads something else")
os.close(a); os.close(b)
sys.exit(bool(bad))
P
}
# with_power_switch CMD...: the script's half of it, beside the program
with_power_switch() {
  rm -f /tmp/ask.*
  "$@" &
  local job=$!
  while kill -0 $job 2>/dev/null; do
    if [ -e /tmp/ask.cut ]; then cut_power || return; rm /tmp/ask.cut; fi
    if [ -e /tmp/ask.serve ]; then serve || return; rm /tmp/ask.serve; fi
    sleep 0.1
  done
  wait $job
}
for m in rdma tcp; do
  must "$m: two cuts" with_power_switch lost /mnt/$m
done

# A load over several cuts: records of 9001 bytes, and names. What was promised stands in a file beside it.
cat >/tmp/load.py <<'P'
import os, sys
kind, path, promise = sys.argv[1:4]
def record(n): return b"%08d " % n * 1000 + b"\n"
def promised(n):
    with open(promise + ".new", "w") as f: f.write(str(n))
    os.rename(promise + ".new", promise)
n = 0
if kind == "check":
    n = int(open(promise).read())
    if os.path.isdir(path):
        there = set(os.listdir(path))
        for i in range(n):
            if "%d.b" % i not in there or "%d.a" % i in there: sys.exit("name %d of the %d that were made is not there, or is as it was" % (i, n))
    else:
        got = open(path, "rb").read()
        for i in range(n):
            if got[9001 * i:9001 * i + 9001] != record(i): sys.exit("record %d of the %d that were synced is not there" % (i, n))
        there = range(len(got) // 9001)
    print("%d were promised, and are there; %d more" % (n, len(there) - n))
    sys.exit()
if kind == "names": os.mkdir(path)
else: f = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | (os.O_SYNC if kind == "osync" else 0), 0o644)
while not os.path.exists("/tmp/enough"):
    if kind == "names":
        os.close(os.open("%s/%d.a" % (path, n), os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644))
        try: os.rename("%s/%d.a" % (path, n), "%s/%d.b" % (path, n))
        except FileNotFoundError: os.stat("%s/%d.b" % (path, n)) # done before the cut, and asked for once more
    else: os.write(f, record(n))
    n += 1
    if kind == "fsync":
        if n % 5 != 0: continue
        os.fsync(f)
    promised(n)
P
# loads_up, loads_done: on each mount a program that appends and says fsync, one with O_SYNC, one that makes names
loads_up() {
  local m k
  rm -rf /export/load-* /tmp/p /tmp/enough && mkdir -p /tmp/p && loads=()
  for m in rdma tcp; do
    for k in fsync osync names; do
      python3 /tmp/load.py $k /mnt/$m/load-$m-$k /tmp/p/$m-$k & loads+=($!)
    done
  done
  promises
}
promises() { waitfor 120 sh -c 'cd /tmp/p && [ -e rdma-fsync ] && [ -e rdma-osync ] && [ -e rdma-names ] && [ -e tcp-fsync ] && [ -e tcp-osync ] && [ -e tcp-names ]'; }
loads_done() {
  local p
  touch /tmp/enough
  for p in "${loads[@]}"; do wait "$p" || return; done
}
# all_kept: what was promised by now, at the latest, is on the disk
all_kept() {
  local p rc=0
  for p in /tmp/p/*; do
    case $p in *.new) continue ;; esac
    echo -n "${p##*/}: "
    python3 /tmp/load.py check "/export/load-${p##*/}" "$p" || rc=1
  done
  return $rc
}
must "a load" loads_up
for i in 1 2; do
  sleep 0.$((7 * i % 10))
  must "cut $i" cut_power
  must "all is kept after cut $i" all_kept
  rm -f /tmp/p/*
  must "sluiced again" serve
  must "the load goes on" promises
done
must "the load ends" loads_done

# Servers that lie: the same checks find them out
liar() { # liar NAME SAYS CMD...
  local says=$2
  echo "sluiced-$1"
  killed && sluiced=/lab/files/sluiced-$1 && serve || return
  shift 2
  if "$@" >/tmp/liar.txt 2>&1; then echo "the lie was not found out"; return 1; fi
  cat /tmp/liar.txt
  grep -q "$says" /tmp/liar.txt
}
load_and_cut() {
  local rc
  loads_up && sleep 1 && cut_power || return
  all_kept
  rc=$?
  serve && touch /tmp/enough
  return $rc
}
must "a constant verifier" liar constant-verifier "fsync returned for" with_power_switch lost /mnt/rdma
must "a COMMIT that does nothing" liar empty-commit "record .* is not there" load_and_cut
umount -f -l /mnt/rdma /mnt/tcp
exit 0
