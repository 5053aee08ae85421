# What the scenarios of the verbs provider share:  . /lab/files/verbs-lib.sh  (Prepare: giveVerbs).
# One RDMA device of the kernel's, rdma0, stands for an adapter. The binaries have the provider.
PATH=/lab/files:$PATH
ip=10.0.2.15

# vol_up MIB: memory for backing files, and the state directory
vol_up() { mkdir -p /vol/export /tmp/state && mount -t tmpfs -o size="$1m" none /vol && mkdir -p /vol/export; }

# configure ADDRESS MIB: writes /tmp/sluiced.yaml: a target with the unit disk, a file of that size, at port 3260, and the
# export /data at 2050 (TCP) and 20050 (RDMA). FABRIC is the fabric's providers.
configure() {
  local fabric='[{provider: iwarp}, {provider: verbs, devices: [rdma0]}]'
  [ -e /vol/disk.img ] || truncate -s "$2M" /vol/disk.img
  cat >/tmp/sluiced.yaml <<Y
state_dir: /tmp/state
memory: 160MiB
fabric: ${FABRIC:-$fabric}
portals: [{address: "$1:3260"}]
volumes: [{name: disk, path: /vol/disk.img, size: ${2}MiB}]
targets: [{name: "$TARGET", luns: [{lun: 0, volume: disk}]}]
exports:
  - path: /vol/export
    name: /data
    clients: [{match: 10.0.0.0/8, squash: none, any_port: true}]
files: {tcp: "$1:2050", rdma: "$1:20050", rpcbind: none}
Y
}

# daemon_up: starts sluiced with it and waits until it serves by RDMA
daemon_up() {
  sluiced --config /tmp/sluiced.yaml >>/share/out/sluiced.txt 2>&1 &
  daemon=$!
  daemon_there() { daemon_serves || ! kill -0 "$daemon"; }
  waitfor 60 daemon_there && daemon_serves || { cat /share/out/sluiced.txt; return 1; }
}
daemon_serves() { rdma_listening 3260 && rdma_listening 20050; }
# daemon_down: it ends in good order, and nothing of the adapter's stays in use
daemon_down() {
  kill "$daemon" && wait "$daemon" || { echo "sluiced ends with $?"; tail -5 /share/out/sluiced.txt; return 1; }
  waitfor 60 nothing_held || { rdma resource show; rdma resource show qp; return 1; }
}
# Queue pairs, registrations and so on of our programs. The kernel's own stay: the connection manager's, ib_iser's.
nothing_held() {
  local what
  for what in qp cm_id mr pd cq; do ! rdma resource show $what | grep -q 'comm sluice' || return 1; done
}
admin() { sluice "$@" --socket /tmp/state/admin.sock; }
no_session() { local l && l=$(admin session list --output json) && ! grep -q '"id"' <<<"$l"; }
said() { grep -aEi "$1" /share/out/sluiced.txt; }

# must_bear_file_systems: ext4 and xfs on the disk $dev, in each of them a tree, fio and fsx, and UNMAP of it all. The volume is /vol/disk.img.
must_bear_file_systems() {
  mkdir -p /mnt/t
  must_bear ext4 mkfs.ext4 -q -F
  must "e2fsck" e2fsck -fn "$dev"
  must_bear xfs mkfs.xfs -q -f
  must "xfs_repair" xfs_repair -n "$dev"
  must "UNMAP gives the space back and reads zeroes" unmapped
}
must_bear() { # must_bear FS MKFS...
  local fs=$1
  shift
  must "mkfs.$fs" "$@" "$dev"
  must "  mount" mount "$dev" /mnt/t
  must "  a tree, compared after a remount" bears_tree
  must "  fio verify" fio_verify /mnt/t/v 8m
  must "  fsx" fsx -seed "${SEED:-7}" -ops 200 /mnt/t/x
  rm /mnt/t/v /mnt/t/x
  must "  fstrim" fstrim -v /mnt/t
  must "  umount" umount /mnt/t
}
bears_tree() {
  mkdir /mnt/t/tree && tar -C / -cf - etc/init.d etc/default etc/iscsi lab/lib.sh lab/files/fsx | tar -C /mnt/t/tree -xf - && ( cd /mnt/t/tree && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums ) &&
    umount /mnt/t && forget_cache && mount "$dev" /mnt/t && ( cd /mnt/t/tree && sha256sum --quiet -c /tmp/sums ) && echo "## $(wc -l </tmp/sums) files"
}
unmapped() {
  local before after
  sync && before=$(stat -c %b /vol/disk.img) && blkdiscard -f "$dev" && after=$(stat -c %b /vol/disk.img) && echo "## $before blocks of 512 bytes before UNMAP, $after behind it" || return
  [ "$before" -gt 1000 ] && [ "$after" -lt $((before / 4)) ] || return
  dd if="$dev" bs=1M count=64 iflag=direct status=none | cmp -n $((64 << 20)) - /dev/zero
}

# pings ADDRESS PORT COUNT SIZE...: our rping client by the verbs provider
pings() {
  local to=$1:$2 n=$3 s
  case $1 in *:*) to="[$1]:$2" ;; esac
  shift 3
  for s in "$@"; do
    timeout 200 sluice rping client --provider "${PROVIDER:-verbs}" --address "$to" --count "$n" --size "$s" --timeout 180s >/tmp/client.log 2>&1 || { echo "size $s"; cat /tmp/client.log; return 1; }
  done
}
# answers ADDRESS PORT: our rping server, for several clients
answers() {
  local at=$1:$2
  case $1 in *:*) at="[$1]:$2" ;; esac
  sluice rping server --provider "${PROVIDER:-verbs}" --persistent --address "$at" >>/tmp/answers.log 2>&1 &
  answering=$!
  waitfor 60 rdma_listening "$2" || { cat /tmp/answers.log; return 1; }
}

# Times are this machine's of the moment, counts are not: what an I/O costs in packets and Sends of the adapter (both ends', for both are
# on it), packets that it had to repeat or refuse, context switches of the whole guest, and for our daemon in context switches and system
# calls by name. A doorbell of rxe is a write of 32 bytes, the arming of a completion queue one of 16.
snapshot() {
  local c h=/sys/class/infiniband/rdma0/ports/1/hw_counters
  for c in sent_pkts rdma_sends duplicate_request out_of_seq_request rcvd_seq_err send_rnr_err rcvd_rnr_err completer_retry_err; do echo "$c $(cat $h/$c 2>/dev/null || echo 0)"; done
  awk '/^ctxt/{print "switches", $2} /^cpu /{print "busy", $2 + $3 + $4 + $7 + $8; print "idle", $5 + $6}' /proc/stat
  awk '/ctxt_switches/{n += $2} END{print "daemon", n}' /proc/$daemon/task/*/status
}
costs() { # costs WHO OF FILE RW BS DEPTH: a line of costs.txt
  local n=600 trace=/sys/kernel/tracing
  local calls=$trace/events/raw_syscalls/sys_enter/trigger writes=$trace/events/syscalls/sys_enter_write/trigger
  mountpoint -q $trace || mount -t tracefs none $trace || return
  [ "$5" = 4k ] || n=160
  echo 'hist:keys=common_pid,id:size=4096' >$calls && echo 'hist:keys=common_pid,count:size=2048' >$writes || fail "the kernel counts no system calls"
  snapshot >/tmp/before
  fio --name=count --filename="$3" --size="$SIZE" --rw="$4" --bs="$5" --number_ios=$n --direct=1 --ioengine=libaio --iodepth="$6" --minimal >/dev/null
  snapshot >/tmp/after
  cp ${calls%trigger}hist /tmp/calls && cp ${writes%trigger}hist /tmp/writes
  echo '!hist:keys=common_pid,id:size=4096' >$calls && echo '!hist:keys=common_pid,count:size=2048' >$writes
  ls /proc/$daemon/task >/tmp/tasks
  awk -v n=$n -v who="$1 $2 $4 $5" -v ours="$1" '
    BEGIN { split("0 read 1 write 16 ioctl 5 fstat 24 sched_yield 35 nanosleep 17 pread 18 pwrite 202 futex 232 epoll_wait 233 epoll_ctl 234 tgkill 262 newfstatat 281 epoll_pwait 295 preadv 296 pwritev 327 preadv2 328 pwritev2 15 sigreturn 230 clock_nanosleep", l)
      for (i = 1; i in l; i += 2) name[l[i]] = l[i + 1] }
    FILENAME == "/tmp/before" { was[$1] = $2; next }
    FILENAME == "/tmp/after" { is[$1] = $2 - was[$1]; next }
    FILENAME == "/tmp/tasks" { task[$1] = 1; next }
    { gsub(/[{},:]/, " ") } $1 != "common_pid" || !($2 in task) { next }
    FILENAME == "/tmp/calls" { call[($4 in name) ? name[$4] : "call-" $4] += $6; all += $6 }
    FILENAME == "/tmp/writes" { call["write-of-" $4] += $6 }
    END { printf "cost %s: sends %.2f, packets %.1f, repeated %.3f, refused %.3f, switches %.1f, processors busy %d %%", who, is["rdma_sends"] / n, is["sent_pkts"] / n,
        (is["duplicate_request"] + is["out_of_seq_request"] + is["rcvd_seq_err"] + is["completer_retry_err"]) / n, (is["send_rnr_err"] + is["rcvd_rnr_err"]) / n, is["switches"] / n, 100 * is["busy"] / (is["busy"] + is["idle"] + 1)
      if (ours == "Sluice") { printf "; daemon: switches %.2f, system calls %.2f", is["daemon"] / n, all / n
        for (c in call) if (call[c] / n >= 0.02) printf ", %s %.2f", c, call[c] / n }
      print "" }' /tmp/before /tmp/after /tmp/tasks /tmp/calls /tmp/writes | tee -a /share/out/costs.txt
}
