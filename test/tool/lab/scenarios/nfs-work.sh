# Work on the kernel's NFSv3 mounts of an export of ours, by RDMA (siw) and by TCP: a source tree, a build, fio, fsx, churn,
# users, a large directory that changes, holes and sizes. The server has the same files as ext4.
. /lab/lib.sh
must "veth" veth_up 1500
must "siw on v0" rdma_up siw v0
# ext4 in memory: the root disk's flushes are the host's, and slow. Blocks of 4 KiB, for long access lists
export_disk() { modprobe loop && truncate -s 500M /tmp/disk && mkfs.ext4 -q -F -b 4096 /tmp/disk && mkdir -p /export && mount -o loop /tmp/disk /export; }
must "ext4" export_disk
mkdir -p /export/open /export/squashed /tmp/state /mnt/rdma /mnt/tcp /mnt/squashed
cat >/tmp/sluiced.yaml <<E
state_dir: /tmp/state
memory: 96MiB
exports:
  - path: /export/open
    name: /data
    clients: [{match: 10.9.0.0/24, squash: none, any_port: true}]
  - path: /export/squashed
    name: /squashed
    clients: [{match: 10.9.0.0/24, squash: root, any_port: true}]
files: {tcp: "10.9.0.2:2049", rdma: "10.9.0.2:20049", rpcbind: none}
E
far /lab/files/sluiced --config /tmp/sluiced.yaml >/share/out/sluiced.txt 2>&1 &
waitfor 60 far sh -c 'ss -Hltn "sport = :20049" | grep -q .' || fail "sluiced: $(cat /share/out/sluiced.txt)"
must "client" nfs_up
o=vers=3,nolock,mountport=2049,mountproto=tcp,timeo=600,retrans=2
must "mount over RDMA" timeout 120 mount -t nfs -o rdma,port=20049,$o 10.9.0.2:/data /mnt/rdma
must "mount over TCP" timeout 120 mount -t nfs -o proto=tcp,port=2049,$o 10.9.0.2:/data /mnt/tcp
must "mount of a squashed export" timeout 120 mount -t nfs -o rdma,port=20049,$o 10.9.0.2:/squashed /mnt/squashed
grep -q 'proto=rdma' /proc/mounts || fail "the first mount is not over RDMA"

# source_tree DIR MOUNT OTHER: unpacks the tree by one mount, checks it by both and where the server has it
source_tree() {
  mkdir "$2/$1" && tar -C "$2/$1" -xf /lab/files/source.tar || return
  ( cd "$2/$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums ) || return
  mkdir -p /tmp/ref && tar -C /tmp/ref -xf /lab/files/source.tar && ( cd /tmp/ref && sha256sum --quiet -c /tmp/sums ) || return
  [ "$(wc -l </tmp/sums)" = "$(find /tmp/ref -type f | wc -l)" ] || { echo "files are missing"; return 1; }
  forget_cache
  ( cd "$2/$1" && sha256sum --quiet -c /tmp/sums ) && ( cd "$3/$1" && sha256sum --quiet -c /tmp/sums ) &&
    ( cd "/export/open/$1" && sha256sum --quiet -c /tmp/sums ) && wc -l </tmp/sums && rm -r "${3:?}/$1" && [ ! -e "/export/open/$1" ]
}

# build MOUNT: a program of 30 C files, made there; a second make does nothing, and after a touch just what it must
build() (
  mkdir "$1/build" && cd "$1/build" || return
  local n=30 i
  { echo "int f0(int);"; for ((i = 1; i < n; i++)); do echo "int f$i(int);"; done; } >all.h
  for ((i = 0; i < n; i++)); do printf '#include <stdio.h>\n#include <stdlib.h>\n#include "all.h"\nint f%d(int x) { return x * %d + %d; }\n' $i $((i % 3 + 1)) $i >f$i.c; done
  { echo '#include <stdio.h>'; echo '#include "all.h"'; echo 'int main(void) { unsigned s = 0;'; for ((i = 0; i < n; i++)); do echo "s += f$i($i);"; done; echo 'printf("%u\n", s); return 0; }'; } >main.c
  printf 'OBJ := $(patsubst %%.c,%%.o,$(wildcard *.c))\nprog: $(OBJ)\n\ttcc -o $@ $^\n%%.o: %%.c all.h\n\ttcc -c -o $@ $<\n' >Makefile
  local want=0
  for ((i = 0; i < n; i++)); do want=$((want + i * (i % 3 + 1) + i)); done
  make -s -j4 || return
  [ "$(./prog)" = $want ] || { echo "the program says $(./prog), not $want"; return 1; }
  make -q || { echo "a second make finds work"; return 1; }
  touch f7.c && make -n | grep -c 'tcc -c' | grep -qx 1 || { echo "after a touch make does:"; make -n; return 1; }
  make -s && make -q && [ "$(./prog)" = $want ] && cd / && rm -r "$1/build"
)

as() { local u=$1 g=$2; shift 2; setpriv --reuid "$u" --regid "${g%%,*}" --groups "$g" "$@"; }
refused() { ! "$@" 2>/dev/null || { echo "allowed: $*"; return 1; }; }
is() { [ "$(stat -c "$2" "$1")" = "$3" ] || { echo "$1 is $(stat -c "$2" "$1"), not $3"; return 1; }; }
# users MOUNT: each request acts as its caller, with the caller's groups
users() (
  mkdir "$1/u" && chmod 755 "$1/u" && cd "$1/u" || return
  echo secret >f && chown 1001:2001 f && chmod 640 f && is f %u:%g:%a 1001:2001:640 || return
  as 1001 2001 cat f >/dev/null && as 1002 2002,2001 cat f >/dev/null && refused as 1002 2002 cat f && refused as 1002 2002,2001 tee f </dev/null || return
  as 1001 2001 chmod 600 f && refused as 1002 2002,2001 cat f && refused as 1002 2002 chmod 777 f && is f %a 600 || return
  refused as 1001 2001 chown 1002 f && refused as 1001 2001 chgrp 3000 f && as 1001 2001,2005 chgrp 2005 f && is f %u:%g 1001:2005 || return
  TZ=UTC0 as 1001 2001 touch -d '2001-02-03 04:05:06.789012345' f && [ "$(TZ=UTC0 stat -c %y f)" = '2001-02-03 04:05:06.789012345 +0000' ] || return
  refused as 1002 2002 touch -d '2002-01-01' f && refused as 1002 2002 touch f && chmod 666 f && as 1002 2002 touch f || return
  refused as 1002 2002 touch -d '2002-01-01' f || return # who may write may say "now", and nothing else
  mkdir t && chmod 1777 t && as 1001 2001 touch t/mine && refused as 1002 2002 rm -f t/mine && refused as 1002 2002 mv t/mine t/yours && as 1001 2001 rm t/mine || return
  mkdir g && chown 1001:2005 g && chmod 2775 g && as 1002 2002,2005 touch g/x && is g/x %u:%g 1002:2005 || return
  as 1002 2002,2005 mkdir g/d && is g/d %g:%A 2005:drwxr-sr-x || return
  chmod 4757 g/x && as 1003 2002 sh -c 'echo more >>g/x' && is g/x %a 757 || return # a write takes set-user-ID away
  chmod 700 g && refused as 1002 2002,2005 ls g || return
  cd / && rm -r "$1/u" || return
)
squashed() (
  chown 65534:65534 /export/squashed && cd /mnt/squashed && touch byroot && is byroot %u:%g 65534:65534 && is /export/squashed/byroot %u 65534 || return
  chown 1001 /export/squashed/byroot && chmod 600 /export/squashed/byroot || return
  waitfor 90 sh -c '! cat byroot' || return
  refused chown 0 byroot || return
)

# acls MOUNT: lists are the server's file system's own, as both ends see them, and count
acls() (
  mkdir "$1/l" && cd "$1/l" || return
  same_list() { [ "$(getfacl -cpn "$1")" = "$(getfacl -cpn "/export/open/l/$1")" ] || { echo "lists of $1 differ:"; getfacl -cpn "$1" "/export/open/l/$1"; return 1; }; }
  echo text >f && chown 1001:2001 f && chmod 600 f && same_list f && refused as 1003 3003 cat f || return
  as 1001 2001 setfacl -m u:1003:r,g:2005:rw f && same_list f && as 1003 3003 cat f >/dev/null && as 1004 2005 tee -a f </dev/null && refused as 1003 3003 tee -a f </dev/null || return
  getfacl -cpn f | grep -qx 'user:1003:r--' && is f %A -rw-rw---- && refused as 1003 3003 setfacl -m u:1003:rw f || return
  as 1001 2001 chmod 640 f && refused as 1004 2005 tee -a f </dev/null && same_list f || return # the mask limits
  as 1001 2001 setfacl -x u:1003 f && refused as 1003 3003 cat f && setfacl -b f && same_list f && refused grep -q 2005 <(getfacl -cpn f) || return
  setfacl -d -m g:2005:rwx,o::- . && same_list . || return
  mkdir sub && touch sub/x && same_list sub && same_list sub/x && getfacl -cpn sub | grep -qx 'default:group:2005:rwx' && getfacl -cpn sub/x | grep -q '^group:2005:' || return
  setfacl -k sub && same_list sub && cp -p --preserve=all f f2 && setfacl -m u:1005:rwx f2 && cp --preserve=all f2 f3 && same_list f3 && getfacl -cpn f3 | grep -qx 'user:1005:rwx' || return
  { for ((i = 0; i < 300; i++)); do echo "u:$((5000 + i)):r"; done; } >/tmp/many && setfacl -M /tmp/many f2 && same_list f2 && [ "$(getfacl -cpn f2 | grep -c '^user:5')" = 300 ] || return
  cd / && rm -r "$1/l" || return
)

# space MOUNT: df sees what the server's statfs sees; the client counts in blocks of its own
space() {
  local here there
  here=$(($(stat -f -c '%b*%S' "$1"))) there=$(($(stat -f -c '%b*%S' /export/open)))
  [ $((here - there)) -ge 0 ] && [ $((here - there)) -lt $((2 << 20)) ] || { echo "df: $here bytes here, $there at the server"; return 1; }
  df "$1" | tail -1 && df -i "$1" | tail -1
}

# sizes MOUNT: holes, truncation, offsets behind 4 GiB, names, links, special files
sizes() (
  mkdir "$1/z" && cd "$1/z" || return
  truncate -s 5G big && is big %s 5368709120 && printf tail | dd of=big bs=1 seek=5000000000 conv=notrunc status=none || return
  forget_cache || return
  [ "$(dd if=big bs=1 skip=4999999998 count=6 status=none | od -An -tx1)" = ' 00 00 74 61 69 6c' ] || return
  [ "$(du -k big | cut -f1)" -lt 1024 ] || { echo "holes take $(du -k big) KiB"; return 1; }
  head -c 100000 /dev/urandom >a && cp a /tmp/a && truncate -s 12345 a && truncate -s 50000 a || return
  { head -c 12345 /tmp/a; head -c 37655 /dev/zero; } >/tmp/want || return
  cmp /tmp/want a && forget_cache && cmp /tmp/want a || return
  exec 7>>a && rm a && echo still >&7 && exec 7>&- || return
  [ -z "$(ls -A | grep nfs)" ] || { echo "a file removed while open left $(ls -A)"; return 1; }
  local long
  long=$(printf '%255s' | tr ' ' n) || return
  touch "$long" && refused touch "${long}n" && ln "$long" l2 && is l2 %h 2 && ln -s "$long" s && [ -e s ] || return
  mkfifo p && mknod c c 1 3 && is c %F:%t:%T 'character special file:1:3' && { echo through >p & } && [ "$(cat p)" = through ] && echo >c || return
  cd / && rm -r "$1/z" || return
)

for m in ${MOUNTS:-rdma tcp}; do
  other=tcp; [ $m = tcp ] && other=rdma
  must "$m: users" users /mnt/$m
  must "$m: access lists" acls /mnt/$m
  must "$m: df" space /mnt/$m
  must "$m: holes, sizes, names" sizes /mnt/$m
  must "$m: a build" build /mnt/$m
  must "$m: a source tree" source_tree src-$m /mnt/$m /mnt/$other
  must "$m: fio verify" fio_verify /mnt/$m/v 16m
  must "$m: fio verify, buffered" fio_verify /mnt/$m/v 16m --direct=0 --ioengine=psync
  rm /mnt/$m/v
  must "$m: fsx" /lab/files/fsx -ops 500 /mnt/$m/x
  must "$m: fsx with O_DIRECT" /lab/files/fsx -ops 300 -direct /mnt/$m/x
  cmp /mnt/$m/x /export/open/x || fail "fsx's file differs at the server"
  mkdir /mnt/$m/churn-$m
  must "$m: four processes at names" /lab/files/fsx -churn -ops 150 /mnt/$m/churn-$m
  must "$m: 10,000 files listed while others rename" /lab/files/fsx -list -rounds 2 -create /export/open /mnt/$m
done
must "root is squashed" squashed
must "umount" umount -i /mnt/rdma /mnt/tcp /mnt/squashed
