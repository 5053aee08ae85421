# The kernel's NFS client by TCP to `sluice gateway`, which goes on by RDMA to sluiced: the same files at both ends.
. /lab/lib.sh
. /lab/files/nfs-lib.sh
must "veth" veth_up 1500
mkdir -p /export && mount -t tmpfs -o size=200m none /export || fail "tmpfs"
must "sluiced" serve
must "client" nfs_up
capture v0 gateway tcp
/lab/files/sluice gateway nfs+rdma://10.9.0.2/ >/share/out/gateway.txt 2>&1 &
gateway=$!
waitfor 60 listening 2049 || fail "gateway: $(cat /share/out/gateway.txt)"
mkdir -p /mnt/g
must "mount" timeout 120 mount -t nfs -o vers=3,proto=tcp,port=2049,mountport=2049,mountproto=tcp,nolock,timeo=600 127.0.0.1:/data /mnt/g
tree() {
  mkdir /mnt/g/src && tar -C /mnt/g/src -xf /lab/files/source.tar && ( cd /mnt/g/src && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums ) &&
    ( cd /export/src && sha256sum --quiet -c /tmp/sums ) && forget_cache && ( cd /mnt/g/src && sha256sum --quiet -c /tmp/sums ) && rm -r /mnt/g/src && [ ! -e /export/src ]
}
must "a tree" tree
must "fio verify" fio_verify /mnt/g/v 8m
must "fsx" /lab/files/fsx -ops 300 /mnt/g/x
cmp /mnt/g/x /export/x || fail "fsx's file differs"
mkdir /mnt/g/churn
must "names" /lab/files/fsx -churn -ops 60 /mnt/g/churn
# The server goes and comes back; the gateway and the mount do not notice more than a pause
again() {
  kill -9 "$(pgrep -f '^/lab/files/sluiced' | head -1)"
  wait "$served" 2>/dev/null
  serve && echo after >/mnt/g/after && sync -f /mnt/g/after && [ "$(cat /export/after)" = after ]
}
must "the server restarts" again
capture_end
# with data: the connection that MOUNT went by stays open, and keep-alives count nothing
data() { tcpdump -r /share/out/gateway.pcap "tcp port $1 and ip[2:2] - ((ip[0] & 0xf) << 2) - ((tcp[12] & 0xf0) >> 2) != 0" 2>/dev/null | wc -l; }
rdma=$(data 20049) tcp=$(data 2049)
echo "between gateway and server: $rdma segments of RDMA, $tcp of TCP"
[ "$rdma" -gt 1000 ] && [ "$tcp" -gt 0 ] && [ "$tcp" -lt 20 ] || fail "the data did not go by RDMA"
must "umount" umount -i /mnt/g
kill $gateway && wait $gateway || fail "the gateway ends with status $?"
