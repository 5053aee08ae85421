# Power failures of the file server: what no COMMIT covered is gone from the disk, the client sees another write verifier and
# sends it again, and nothing that fsync returned for is lost.
#
# The server's ext4 lies on dm-flakey. A cut kills sluiced, lets the device drop every write from then on, and mounts the file
# system anew from what had reached it: the kernel's own dirty pages are lost as in a machine that has lost power.
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
cut_power() {
  # The server first: what it acknowledged while writes are dropped would be lost by the test's fault
  kill -9 "$(pgrep -f '^/lab/files/sluiced' | head -1)"
  wait "$served" 2>/dev/null
  table "flakey $disk 0 0 1 1 drop_writes" || return
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

# lost MOUNT: data is sent and not committed, the power goes, fsync sends it again
lost() {
  python3 - "$1" <<'P' || return
import ctypes, hashlib, os, subprocess, sys, time
m = sys.argv[1]
c = ctypes.CDLL(None, use_errno=True)
c.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
def count(what):
    on = False
    for l in open("/proc/self/mountstats"):
        w = l.split()
        if w and w[0] == "device": on = w[4] == m
        elif on and w and w[0] == what + ":": return int(w[1])
def ask(what):  # the script does it
    open("/tmp/ask." + what, "w").close()
    while os.path.exists("/tmp/ask." + what): time.sleep(0.05)
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
if count("COMMIT") != before: sys.exit("the client has committed by itself")
there = open("/export/sent", "rb").read()
if there != sent: sys.exit("the server does not have what was sent: %d of %d bytes" % (len(there), len(sent)))
ask("cut")
there = open("/export/sent", "rb").read()
if there == sent: sys.exit("nothing was lost: the cut proves nothing")
if open("/export/kept", "rb").read() != kept: sys.exit("what was synced is lost")
print("lost: %d of %d bytes are left of what was sent" % (len(there), len(sent)))
ask("serve")
writes = count("WRITE")
os.fsync(b); os.fsync(a)
again = count("WRITE") - writes
print("%d WRITEs sent again" % again)
if again < 1: sys.exit("nothing was sent again")
ask("cut")
want = bytearray(kept); want[700000:1200000] = sent[:500000]
for name, w in (("kept", bytes(want)), ("sent", sent)):
    got = open("/export/" + name, "rb").read()
    if got != w: sys.exit("%s: fsync returned for %d bytes, and %d are there, not the same" % (name, len(w), len(got)))
ask("serve")
if os.pread(b, len(sent), 0) != sent: sys.exit("the client reads something else")
os.close(a); os.close(b)
P
}
# with_power_switch CMD...: the script's half of it, beside the program
with_power_switch() {
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

must "umount" umount -i /mnt/rdma /mnt/tcp
