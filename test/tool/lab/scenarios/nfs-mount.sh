# The kernel's NFS client against an export of ours: over RDMA (siw) and over TCP, the same files through both.
. /lab/lib.sh
must "veth" veth_up 1500
must "siw on v0" rdma_up siw v0
mkdir -p /export /tmp/state /mnt/rdma /mnt/tcp
mount -t tmpfs -o size=300m none /export
cat >/tmp/sluiced.yaml <<E
state_dir: /tmp/state
memory: 96MiB
exports:
  - path: /export
    name: /data
    clients: [{match: 10.9.0.0/24, squash: none, any_port: true}]
files: {tcp: "10.9.0.2:2049", rdma: "10.9.0.2:20049", rpcbind: none}
E
far /lab/files/sluiced --config /tmp/sluiced.yaml >/share/out/sluiced.txt 2>&1 &
waitfor 60 far sh -c 'ss -Hltn "sport = :20049" | grep -q .' || fail "sluiced: $(cat /share/out/sluiced.txt)"
must "client" nfs_up
capture v0 nfs-mount tcp port 20049
o=vers=3,nolock,mountport=2049,mountproto=tcp,timeo=600,retrans=2
must "mount over RDMA" timeout 120 mount -t nfs -o rdma,port=20049,$o 10.9.0.2:/data /mnt/rdma
must "mount over TCP" timeout 120 mount -t nfs -o proto=tcp,port=2049,$o 10.9.0.2:/data /mnt/tcp
grep -q 'proto=rdma' /proc/mounts || fail "the first mount is not over RDMA"
tree() {
  tar -C / -cf - etc/init.d etc/default etc/iscsi lab/lib.sh | tar -C "$1" -xf - && head -c 8M /dev/urandom >"$1/large" && ( cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums ) &&
    forget_cache && ( cd "$2" && sha256sum --quiet -c /tmp/sums ) && ( cd /export && sha256sum --quiet -c /tmp/sums )
}
must "a tree by RDMA, read by TCP" tree /mnt/rdma /mnt/tcp
many() { mkdir "$1/d" && ( cd "$1/d" && for i in {1..25}; do echo "$i" >f"$i" || return; done && mv f1 g1 && ln g1 h1 && ln -s g1 s1 && [ "$(ls | wc -l)" = 27 ] ) && rm -r "$1/d"; }
must "two dozen files, links, names" many /mnt/rdma
must "fio verify by RDMA" fio_verify /mnt/rdma/v 8m
must "fio verify by TCP" fio_verify /mnt/tcp/v 8m
capture_end
must "umount" umount -i /mnt/rdma /mnt/tcp
