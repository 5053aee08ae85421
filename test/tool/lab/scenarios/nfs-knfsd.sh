# Our client against the kernel's NFS server: trees both ways, checksums, several at once, a server that restarts under it; over
# RDMA (siw) and over TCP.
. /lab/lib.sh
must "veth" veth_up 1500
must "siw on v0" rdma_up siw v0
mkdir -p /export && mount -t tmpfs -o size=300m none /export && chmod 777 /export
must "knfsd" nfsd_up /export
sluice() { far /lab/files/sluice "$@"; }
mkdir -p /tmp/src && tar -C /tmp/src -xf /lab/files/source.tar || fail "the source tree"
head -c 4M /dev/urandom >/tmp/src/large && : >/tmp/src/empty && mkdir -p /tmp/src/none
( cd /tmp/src && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums )
same() { ( cd "$1" && sha256sum --quiet -c /tmp/sums ) && [ "$(cd "$1" && find . | sort | sha256sum)" = "$(cd /tmp/src && find . | sort | sha256sum)" ]; }

both() { # both URL NAME
  sluice cp -q -r /tmp/src "$1/$2?$3" && same "/export/$2" || return
  sluice cp -q -r "$1/$2?$3" "/tmp/back-$2" && same "/tmp/back-$2" && rm -r "/tmp/back-$2"
}
commands() { # commands URL ARGUMENTS
  sluice mkdir "$1/c?$2" && [ -d /export/c ] && echo some bytes >/tmp/some && sluice cp -q /tmp/some "$1/c/some?$2" || return
  [ "$(sluice cat "$1/c/some?$2")" = "some bytes" ] && sluice ls "$1/c?$2" | grep -q some && sluice tree "$1/c?$2" | grep -q some || return
  ! sluice cat "$1/c/other?$2" 2>/tmp/err && grep -qi 'no such file\|not exist' /tmp/err || { cat /tmp/err; return 1; }
  sluice rm -r "$1/c?$2" && [ ! -e /export/c ]
}
atonce() { # atonce URL ARGUMENTS: four copies in and four out beside each other
  local i p=()
  for i in 1 2 3 4; do sluice cp -q /tmp/src/large "$1/many$i?$2" & p+=($!); done
  for i in "${p[@]}"; do wait "$i" || return; done
  p=()
  for i in 1 2 3 4; do cmp /tmp/src/large "/export/many$i" || return; sluice cat "$1/many$i?$2" | cmp - /tmp/src/large & p+=($!); done
  for i in "${p[@]}"; do wait "$i" || return; done
  rm /export/many*
}
# restarted URL ARGUMENTS: knfsd ends and begins again while a file is copied; the copy takes longer, and is whole
restarted() {
  [ -e /tmp/huge ] || head -c 64M /dev/urandom >/tmp/huge
  sluice cp -q /tmp/huge "$1/again?$2" &
  local job=$! n
  waitfor 60 test -s /export/again || return
  rpc.nfsd 0 && [ "$(cat /proc/fs/nfsd/threads)" = 0 ] && n=$(stat -c %s /export/again) || return
  sleep 1
  kill -0 $job 2>/dev/null && echo "at $n bytes" || { echo "the copy was done before"; return 1; }
  rpc.nfsd --grace-time 1 --lease-time 5 4 2>/dev/null || rpc.nfsd 4 || return
  [ "${1%%:*}" = nfs ] || echo "rdma 20049" >/proc/fs/nfsd/portlist || return
  wait $job && cmp /tmp/huge /export/again && rm /export/again
}
for how in nfs+rdma nfs; do
  port=2049; [ $how = nfs ] || port=20049
  u=$how://10.9.0.1/export a="nfsport=$port&mountport=20048"
  must "$how: commands" commands $u "$a"
  must "$how: a tree there and back" both $u tree "$a"
  must "$how: four at once" atonce $u "$a"
  must "$how: the server restarts" restarted $u "$a"
  must "$how: remove" sluice rm -r "$u/tree?$a"
  [ -z "$(ls -A /export)" ] || fail "left behind: $(ls -A /export)"
done
must "ports by rpcbind" sluice ls nfs://10.9.0.1/export
