# The kernel's NFS server and client over RDMA, in one guest. Argument: siw or rxe.
. /lab/lib.sh
must "$1 on eth0" rdma_up "$1" eth0
mkdir -p /export /mnt/n && mount -t tmpfs -o size=200m none /export && chmod 777 /export
must "knfsd" nfsd_up /export
must "client" nfs_up
must "mount" timeout 60 mount -t nfs -o rdma,port=20049,vers=3,nolock,mountport=20048,mountproto=tcp 10.0.2.15:/export /mnt/n
files() {
  head -c 16M /dev/urandom >/tmp/r && cp /tmp/r /mnt/n/r && sync && cmp /tmp/r /export/r && forget_cache && cmp /tmp/r /mnt/n/r
}
must "a copy, compared on both sides" files
must "fio verify" fio_verify /mnt/n/v 32m
must "umount" umount /mnt/n
