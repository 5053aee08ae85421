# NFS over RDMA over RoCE: the kernel's client to our server, which is killed under it; our client to knfsd and to our server.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
must "rxe on eth0" rdma_up rxe eth0
must "memory for the export" vol_up 400
configure $ip 16
must "sluiced" daemon_up
mkdir -p /export /mnt/rdma /mnt/tcp && mount -t tmpfs -o size=200m none /export && chmod 777 /export
must "knfsd" nfsd_up /export
must "client" nfs_up
o=vers=3,nolock,mountport=2050,mountproto=tcp,timeo=600,retrans=2
mounted() {
  timeout 120 mount -t nfs -o rdma,port=20050,$o $ip:/data /mnt/rdma && timeout 120 mount -t nfs -o proto=tcp,port=2050,$o $ip:/data /mnt/tcp &&
    grep -q 'proto=rdma' /proc/mounts
}
again() { umount -i /mnt/rdma /mnt/tcp && forget_cache && mounted; }
must "mounts by RDMA and by TCP" mounted
sums() { ( cd "$1" && sha256sum --quiet -c /tmp/sums ); }
tree() { # tree WRITTEN READ
  tar -C / -cf - ${TREE:-etc/init.d etc/default etc/iscsi} lab/lib.sh | tar -C "$1" -xf - && head -c 4M /dev/urandom >"$1/large" && ( cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums ) &&
    again && sums "$1" && sums "$2" && sums /vol/export && echo "## $(wc -l </tmp/sums) files"
}
must "a tree by TCP, read by both after a remount" tree /mnt/tcp /mnt/rdma
rm -r /mnt/tcp/*
must "a tree by RDMA, read by both after a remount" tree /mnt/rdma /mnt/tcp
# The comparison has to be able to fail: bytes of the server's file are changed behind the mount
spoilt() {
  printf '0123456789abcdef' | dd of=/vol/export/large bs=16 seek=7000 conv=notrunc status=none && again || return
  ! sums /mnt/rdma 2>/dev/null && [ "$(cd /mnt/rdma && sha256sum -c /tmp/sums 2>/dev/null | grep -c FAILED)" = 1 ]
}
must "a change behind the mount is found" spoilt
rm -r /mnt/rdma/*
must "fio verify by RDMA" fio_verify /mnt/rdma/v 8m
must "fsx by RDMA" fsx -seed "${SEED:-7}" -ops 500 /mnt/rdma/fsx
# The client notes each key that a reply took back (RFC 8797 section 4.3) as an event of the kernel's. On rxe it gives a key to each
# 128 KiB, and a reply takes a key back where the call has only one.
invalidated() {
  local t=/sys/kernel/tracing n i
  mountpoint -q $t || mount -t tracefs none $t || return
  echo 1 >$t/events/rpcrdma/xprtrdma_mr_reminv/enable || return
  for i in {1..8}; do head -c 64K /dev/urandom >/mnt/rdma/w$i && sync -f /mnt/rdma/w$i || return; done
  forget_cache && cat /mnt/rdma/w* >/tmp/theirs && cat /vol/export/w* | cmp - /tmp/theirs || return
  echo 0 >$t/events/rpcrdma/xprtrdma_mr_reminv/enable
  n=$(grep -c xprtrdma_mr_reminv $t/trace)
  echo "## $n keys of 8 writes and 8 reads were invalidated by Send"
  [ "$n" -ge 8 ]
}
must "Send with Invalidate" invalidated
# The daemon is killed under the mount: the client sends again, and nothing is lost
fio_verify /mnt/rdma/k 24m >/tmp/verify 2>&1 &
fio=$!
flows() { [ "$(stat -c %b /vol/export/k 2>/dev/null || echo 0)" -gt 8000 ]; } # blocks of 512 bytes
waitfor 120 flows || fail "fio does not write"
kill -9 $daemon && wait $daemon
kill -0 $fio || fail "fio was done before the daemon was killed"
must "nothing of the killed daemon is held" waitfor 60 nothing_held
must "sluiced again" daemon_up
must "fio ends well" wait $fio
cat /tmp/verify
must "every block verifies after a remount" eval "again && fio_verify /mnt/rdma/k 24m --verify_only"
must "umount" umount -i /mnt/rdma /mnt/tcp

head -c 4M /dev/urandom >/tmp/large
ours() { # ours URL DIRECTORY ARGUMENTS
  local u=$1 d=$2 a=$3 i p=()
  sluice mkdir "$u/c?$a" && [ -d "$d/c" ] && echo some bytes >/tmp/some && sluice cp -q /tmp/some "$u/c/some?$a" && [ "$(sluice cat "$u/c/some?$a")" = "some bytes" ] || return
  sluice ls "$u/c?$a" | grep -q some && ! sluice ls "$u/none?$a" 2>/tmp/err && grep -qi 'no such file\|not exist' /tmp/err || { cat /tmp/err; return 1; }
  sluice cp -q -r /etc/init.d "$u/c/etc?$a" && sluice cp -q -r "$u/c/etc?$a" /tmp/etc && diff -r --no-dereference /etc/init.d /tmp/etc && diff -r --no-dereference /etc/init.d "$d/c/etc" && rm -r /tmp/etc || return
  for i in 1 2 3 4; do sluice cp -q /tmp/large "$u/c/l$i?$a" & p+=($!); done
  for i in "${p[@]}"; do wait "$i" || return; done
  for i in 1 2 3 4; do cmp "$d/c/l$i" /tmp/large && sluice cat "$u/c/l$i?$a" | cmp - /tmp/large || return; done
  sluice rm -r "$u/c?$a" && [ ! -e "$d/c" ]
}
must "our client to knfsd" ours nfs+rdma://$ip/export /export "nfsport=20049&mountport=20048&provider=verbs"
must "our client to our server" ours nfs+rdma://$ip/data /vol/export "nfsport=20050&mountport=2050&provider=verbs"
must "our client by software iWARP to the same port" sluice ls "nfs+rdma://$ip/data?nfsport=20050&mountport=2050"
must "sluiced ends in good order" daemon_down
