# A machine that lacks something of what RDMA takes: tool, sluice rdma, doctor and daemon say in a sentence what, and iSCSI/TCP,
# software iWARP and NFS are served all the same.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
lib=/usr/lib/x86_64-linux-gnu
must "memory for the volume" vol_up 300
# The provider is asked for, so that its absence is something to say; the configuration that says nothing of it takes adapters when
# there are some.
FABRIC="[{provider: iwarp}, {provider: verbs}]" configure $ip 64
cp /tmp/sluiced.yaml /tmp/asked.yaml
grep -v '^fabric:' /tmp/asked.yaml >/tmp/plain.yaml

# sentence FILE PATTERN: of what the program itself says, a line for people says it, and none is Go's or C's. rdma-core's libraries
# print lines of their own.
sentence() {
  grep -avE '^(libibverbs|librdmacm): ' "$1" >/tmp/own.log
  grep -aEi -m 2 "$2" /tmp/own.log || { echo "nothing says /$2/:"; cat "$1"; return 1; }
  ! grep -aE 'goroutine|panic:|SIGSEGV|0x[0-9a-f]{8}' /tmp/own.log
}
tool() { # tool PATTERN: the tool fails, says why in few lines, and does not hang
  local rc=0
  timeout 60 sluice rping client --provider verbs --address $ip:7174 --count 1 >/tmp/tool.log 2>&1 || rc=$?
  [ $rc = 1 ] || { echo "status $rc"; cat /tmp/tool.log; return 1; }
  sentence /tmp/tool.log "$1" && [ "$(wc -l </tmp/own.log)" -le 3 ] || { cat /tmp/own.log; return 1; }
}
shows() { # shows COMMAND PATTERN: sluice COMMAND says it
  local rc=0
  timeout 60 sluice "$1" >/tmp/shows.log 2>&1 || rc=$?
  [ $rc -lt 2 ] || { echo "status $rc"; cat /tmp/shows.log; return 1; }
  sentence /tmp/shows.log "$2"
}
daemon() { # daemon PATTERN CONFIG [PREFIX...]: it starts, says so, and serves iSCSI/TCP, software iWARP and NFS by both
  local pattern=$1 config=$2 rc=0 pid
  shift 2
  "$@" sluiced --config "$config" >/tmp/daemon.log 2>&1 &
  pid=$!
  waitfor 60 sh -c "ss -Hltn 'sport = :3260' | grep -q . && ss -Hltn 'sport = :20050' | grep -q ." || { cat /tmp/daemon.log; return 1; }
  sluice inquiry "iscsi://$ip:3260/$TARGET/0" >/dev/null && sluice inquiry "iser://$ip:3260/$TARGET/0" >/dev/null &&
    sluice ls "nfs://$ip/data?nfsport=2050&mountport=2050" && sluice ls "nfs+rdma://$ip/data?nfsport=20050&mountport=2050" || rc=1
  [ -z "$pattern" ] || sentence /tmp/daemon.log "$pattern" || rc=1
  kill $pid && wait $pid || { echo "sluiced ends with $?"; rc=1; }
  cat /tmp/daemon.log >>/share/out/sluiced.txt
  [ $rc = 0 ] || cat /tmp/daemon.log
  return $rc
}
lacks() { # lacks WHAT PATTERN [PATTERN for doctor]
  must "$1: the tool" tool "$2"
  must "$1: sluice rdma" shows rdma "$2"
  must "$1: doctor" shows doctor "${3:-$2}"
  must "$1: the daemon that is asked for adapters" daemon "$2" /tmp/asked.yaml
  must "$1: the daemon that is not" daemon "" /tmp/plain.yaml
}
lacks "no modules, no adapter" 'no RDMA adapter, or the kernel' 'RDMA devices +none'
must "rxe on eth0" rdma_up rxe eth0
must "with everything: sluice rdma" shows rdma rdma0
# librdmacm asks the kernel for the connection manager's node by name, and the kernel loads the module then
echo 'install rdma_ucm /bin/false' >/etc/modprobe.d/without.conf
rmmod rdma_ucm || fail "rdma_ucm stays"
lacks "no rdma_ucm" 'rdma_ucm'
rm /etc/modprobe.d/without.conf
modprobe rdma_ucm || fail "rdma_ucm does not come back"
waitfor 20 test -c /dev/infiniband/rdma_cm || fail "no /dev/infiniband/rdma_cm"
mv /dev/infiniband/rdma_cm /tmp/rdma_cm
lacks "no node of the connection manager" '/dev/infiniband/rdma_cm'
mv /tmp/rdma_cm /dev/infiniband/
mv /dev/infiniband/uverbs0 /tmp/uverbs0
lacks "no node of the adapter" '/dev/infiniband/uverbs0'
mv /tmp/uverbs0 /dev/infiniband/
mkdir /tmp/hidden
mv $lib/libibverbs.so.1* $lib/librdmacm.so.1* /tmp/hidden/
lacks "no rdma-core" 'install rdma-core'
mv /tmp/hidden/* $lib/
mv $lib/libibverbs /tmp/hidden/ # the drivers' halves in user space
lacks "no providers" 'ibverbs-providers'
mv /tmp/hidden/libibverbs $lib/
# A process that may lock little memory: without CAP_IPC_LOCK the limit counts
printf '#!/bin/bash\nulimit -l 64 && exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$@"\n' >/tmp/low && chmod +x /tmp/low
must "little lockable memory: the daemon" daemon 'LimitMEMLOCK' /tmp/asked.yaml /tmp/low
locked() {
  local rc=0
  /tmp/low timeout 60 sluice rping client --provider verbs --address $ip:7174 --count 1 --size 65535 >/tmp/tool.log 2>&1 || rc=$?
  [ $rc = 1 ] && sentence /tmp/tool.log 'LimitMEMLOCK'
}
must "with everything: a server" answers $ip 7174
must "little lockable memory: the tool" locked
must "little lockable memory: sluice rdma" eval "/tmp/low sluice rdma >/tmp/shows.log 2>&1; sentence /tmp/shows.log 'cannot be used.*LimitMEMLOCK'"
must "little lockable memory: doctor" eval "/tmp/low sluice doctor >/tmp/shows.log 2>&1; sentence /tmp/shows.log 'LimitMEMLOCK'"
must "with everything: the tool" pings $ip 7174 3 64
FABRIC="" configure $ip 64
must "with everything: the daemon" daemon_up
must "with everything: it serves by RDMA" sluice inquiry "iser://$ip:3260/$TARGET/0?provider=verbs"
kill $answering && wait $answering
must "it ends in good order" daemon_down
