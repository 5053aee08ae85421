# The job files of configs/fio through the kernel's own initiators: an iSER disk and an NFS mount over RDMA, both of one
# sluiced behind a veth pair. The host makes the report.
. /lab/lib.sh
must "veth" veth_up 9000
must "siw on v0" rdma_up siw v0
mkdir -p /vol /export /tmp/state /mnt/nfs
mount -t tmpfs -o size=400m none /vol && mkdir -p /vol/export
truncate -s 128M /vol/v.img
cat >/tmp/sluiced.yaml <<E
state_dir: /tmp/state
memory: 256MiB
portals: [{address: "10.9.0.2:3260"}]
volumes: [{name: v, path: /vol/v.img, size: 128MiB}]
targets: [{name: "$TARGET", luns: [{lun: 0, volume: v}]}]
exports:
  - path: /vol/export
    name: /data
    clients: [{match: 10.9.0.0/24, squash: none, any_port: true}]
files: {tcp: "10.9.0.2:2049", rdma: "10.9.0.2:20049", rpcbind: none}
E
far /lab/files/sluiced --config /tmp/sluiced.yaml >/share/out/sluiced.txt 2>&1 &
waitfor 60 far sh -c 'ss -Hltn "sport = :20049" | grep -q .' || fail "sluiced: $(cat /share/out/sluiced.txt)"
must "iscsid" iscsid_up
must "login" iscsi_login iser "$TARGET" 10.9.0.2:3260
dev=$(disk "$TARGET") || fail "no disk"
must "client" nfs_up
must "mount over RDMA" timeout 120 mount -t nfs -o rdma,port=20049,vers=3,nolock,mountport=2049,mountproto=tcp,timeo=600,retrans=2 10.9.0.2:/data /mnt/nfs
grep -q 'proto=rdma' /proc/mounts || fail "the mount is not over RDMA"
export SIZE=${SIZE:-32m} RUNTIME=${RUNTIME:-3s}
for job in random-4k sequential-128k sequential-1m mixed-70-30 sync-writes verify; do
  must "iSER: $job" env DEVICE="$dev" sh /lab/files/run $job -- --output-format=json --output=/share/out/iser.$job.json
  must "NFS: $job" env DIRECTORY=/mnt/nfs sh /lab/files/run $job -- --output-format=json --output=/share/out/nfs.$job.json
done
must "umount" umount -i /mnt/nfs
must "logout" iscsi_logout "$TARGET"
