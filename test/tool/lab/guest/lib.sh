# What scenario scripts share:  . /lab/lib.sh
set -u

# Programs under test panic at an illegal move of internal/state, by the environment that the host gives; systemd's services have it from
# here. What they say of a defect of their own, where it does not lie in /share/out already, is left there for the host.
[ ! -d /run/systemd/system ] || systemctl set-environment SLUICE_STRICT_STATES=1
defects() {
  {
    timeout -s KILL 30 find /tmp -xdev -type f -size -16M -exec grep -ahF "a defect of this program" {} +
    [ ! -d /run/systemd/system ] || timeout -s KILL 30 journalctl -b --no-pager -o cat | grep -aF "a defect of this program"
  } >/share/out/defects.txt 2>/dev/null
}
trap defects EXIT

uptime_s() { cut -d' ' -f1 /proc/uptime; }

# step LABEL CMD...: runs CMD, says how long it took, keeps its status
step() {
  local label=$1 from to rc=0
  shift
  from=$(uptime_s)
  "$@" || rc=$?
  to=$(uptime_s)
  awk -v l="$label" -v t="$(awk "BEGIN{print $to-$from}")" -v rc=$rc 'BEGIN{printf "## step %-36s %7.2f s%s\n", l, t, rc ? "  status " rc : ""}'
  return $rc
}

fail() {
  echo "## FAIL: $*"
  dmesg | tail -"${DMESG_LINES:-20}"
  # A mount whose server is gone would hold the guest's last sync until the limit
  (sleep 90 && dmesg >/share/out/dmesg.txt && echo 1 >/share/rc.tmp && mv /share/rc.tmp /share/rc && busybox poweroff -f) </dev/null >/dev/null 2>&1 &
  exit 1
}

# must LABEL CMD...: a step that ends the scenario when it fails
must() { step "$@" || fail "$1"; }

# waitfor SECONDS CMD...
waitfor() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}

# on_host NAME [ARG...]: asks the driver on the host to do something and waits for its answer, which it prints.
exec 9>&1 # where the host reads, whatever becomes of the standard output
asked=0
on_host() {
  local id
  asked=$((asked + 1)) id=$BASHPID.$asked # in $(...) the count is a copy
  echo "## host $id $*" >&9
  waitfor "${ON_HOST_S:-120}" test -e "/share/host/$id.rc" || return 1
  cat "/share/host/$id.out"
  return "$(cat "/share/host/$id.rc")"
}

# Two guests: tell NAME [TEXT] leaves a note for the other one, await NAME waits for it and prints its text.
tell() { on_host tell "$@"; }
await() { ON_HOST_S=${ON_HOST_S:-900} on_host await "$@"; }
# The second guest ends its script with obey. The first one says: other COMMAND...: the second runs this line, and its status is
# the status here. What it printed is printed here in one line. other end: the second one's script goes on behind obey.
other() {
  local n=$(($(cat /tmp/orders 2>/dev/null || echo 0) + 1)) said
  echo $n >/tmp/orders
  tell "do$n" "$@" && said=$(await "did$n") || return
  [ -z "${said#* }" ] || echo "second: ${said#* }"
  return "${said%% *}"
}
obey() {
  local n line rc
  for ((n = 1; ; n++)); do
    line=$(await "do$n") || return
    echo "## told: $line"
    [ "$line" != end ] || { tell "did$n" 0; return; }
    rc=0
    eval "$line" >/tmp/said 2>&1 </dev/null || rc=$?
    cat /tmp/said
    tell "did$n" "$rc" "$(tr '\n' ' ' </tmp/said | head -c 600)"
  done
}

# wire_up: the end of the wire between two guests: eth1, 10.8.0.1 and fd08::1 in the first one, ...2 in the second
wire_up() {
  waitfor 20 test -d /sys/class/net/eth1 || return
  wire_no=$(sed 's/.*://; s/^0//' /sys/class/net/eth1/address)
  ip link set eth1 mtu "${1:-1500}" up && ip addr add "10.8.0.$wire_no/24" dev eth1 && ip addr add "fd08::$wire_no/64" dev eth1 nodad || return
  waitfor 20 grep -q up /sys/class/net/eth1/operstate
}

# ---- fabric

# rdma_up siw|siw_knobs|rxe NETDEV [PARAM=VALUE...]: one device, named rdma0. Two siw devices in one guest get in each
# other's way: a listener on a wildcard address is made once a device, and the second finds the TCP port taken.
rdma_up() {
  local driver=$1 netdev=$2
  shift 2
  modprobe -a ib_uverbs rdma_ucm || return
  case $driver in
  rxe) modprobe rdma_rxe || return ;;
  *) modprobe "$driver" "$@" || return ;;
  esac
  rdma link add rdma0 type "${driver%_knobs}" netdev "$netdev" || return
  waitfor 10 grep -q ACTIVE /sys/class/infiniband/rdma0/ports/1/state
}

rdma_down() {
  rdma link delete rdma0 && rmmod siw 2>/dev/null || rmmod siw_knobs 2>/dev/null || :
}

# veth_up [MTU]: the kernel's end is v0 (10.9.0.1, fd09::1), the far end v1 (10.9.0.2, fd09::2) in namespace "far".
# Segmentation offload is off, so that what TCP sends is what a wire of that MTU would carry.
veth_up() {
  local mtu=${1:-1500} d
  modprobe veth || return
  ip link add v0 type veth peer name v1 || return
  ip netns add far && ip link set v1 netns far || return
  ip link set v0 mtu "$mtu" up && ip addr add 10.9.0.1/24 dev v0 && ip addr add fd09::1/64 dev v0 nodad || return
  ip -n far link set lo up && ip -n far link set v1 mtu "$mtu" up || return
  ip -n far addr add 10.9.0.2/24 dev v1 && ip -n far addr add fd09::2/64 dev v1 nodad || return
  waitfor 10 grep -q up /sys/class/net/v0/operstate
}
veth_mtu() { ip link set v0 mtu "$1" && ip -n far link set v1 mtu "$1"; }
far() { ip netns exec far "$@"; }

# capture NETDEV NAME [FILTER...]: a pcap of it, left with the scenario's logs
capture() {
  local netdev=$1 name=$2
  shift 2
  tcpdump -i "$netdev" -s 256 -B 16384 -U -w "/share/out/$name.pcap" "$@" >/tmp/tcpdump.log 2>&1 &
  captured=$!
  waitfor 10 grep -q listening /tmp/tcpdump.log
}
capture_end() {
  sleep 0.3
  kill "$captured" && wait "$captured" 2>/dev/null
  :
}

# listening PORT: an iWARP listener is a TCP socket of the kernel's
listening() { ss -Hltn "sport = :$1" | grep -q .; }

# rdma_listening PORT: a listener of the RDMA connection manager, the kernel's or a program's
rdma_listening() { rdma resource show cm_id | grep -q "LISTEN.*:$1\b"; }

# rdma_gid ADDRESS: the index of the GID of rdma0 that carries this IPv4 address
rdma_gid() {
  local i g want
  # shellcheck disable=SC2086,SC2046
  want=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${1//./ })
  for ((i = 0; i < 64; i++)); do
    read -r g <"/sys/class/infiniband/rdma0/ports/1/gids/$i"
    [ "$g" != "$want" ] || { echo "$i"; return; }
  done
  return 1
}

# perf TEST ADDRESS [options]: one of perftest's programs with itself, both ends here; prints its line of figures, which begins
# with the size
perf() {
  local test=$1 a=$2 rc=0 server
  shift 2
  PERF_PORT=${PERF_PORT:-18515}
  "$test" -d rdma0 -R -F -p "$PERF_PORT" "$@" >/tmp/perf.server 2>&1 &
  server=$!
  waitfor 60 rdma_listening "$PERF_PORT" || { cat /tmp/perf.server; return 1; }
  timeout 300 "$test" -d rdma0 -R -F -p "$PERF_PORT" "$@" "$a" >/tmp/perf.client 2>&1 || rc=1
  wait $server || rc=1
  PERF_PORT=$((PERF_PORT + 1))
  [ $rc = 0 ] && grep -E '^ *[0-9]+ +[0-9]+ ' /tmp/perf.client && return
  tail -5 /tmp/perf.server /tmp/perf.client
  return 1
}

# rping_client ADDRESS PORT COUNT [rping options] (PING_S: how many seconds it may take, 180): rping's own status is 0 even when nobody answers, so the lines count
rping_client() {
  local a=$1 p=$2 n=$3 got
  shift 3
  timeout "${PING_S:-180}" rping -c -a "$a" -p "$p" -C "$n" -v -V "$@" >/tmp/rping.log 2>/tmp/rping.err
  got=$(grep -ac '^ping data' /tmp/rping.log)
  [ "$got" = "$n" ] && ! grep -aqi 'error\|mismatch\|fail' /tmp/rping.err && return 0
  echo "rping: $got of $n pings; $(head -c 400 /tmp/rping.err)"
  return 1
}

# ---- iSCSI initiator of the kernel

iscsid_up() {
  modprobe -a sd_mod sg iscsi_tcp ib_iser || return # without udev nobody loads sd_mod
  mkdir -p /run/lock/iscsi /etc/iscsi
  echo "InitiatorName=${INITIATOR:-iqn.2024-01.lab:guest}" >/etc/iscsi/initiatorname.iscsi
  # a login that cannot succeed should fail soon
  iscsi_conf node.session.initial_login_retry_max "${LOGIN_RETRIES:-2}"
  iscsi_conf 'node.conn\[0\].timeo.login_timeout' 10
  iscsi_conf node.session.timeo.replacement_timeout "${REPLACEMENT_S:-120}"
  iscsid -f >/tmp/iscsid.log 2>&1 & # in the foreground it says what the target answered
  waitfor 10 grep -q ISCSIADM /proc/net/unix
}
iscsi_conf() {
  sed -i "/^[# ]*$1 *=/d" /etc/iscsi/iscsid.conf
  echo "${1//\\/} = $2" >>/etc/iscsi/iscsid.conf
}

# iscsi_login tcp|iser TARGET PORTAL [NAME=VALUE...]: logs in. The disks come up a moment later: see disk.
iscsi_login() {
  local transport=$1 target=$2 portal=$3 iface=default kv
  shift 3
  [ "$transport" = iser ] && iface=iser
  iscsiadm -m node -o new -T "$target" -p "$portal" -I $iface >/dev/null || return
  iscsiadm -m node -T "$target" -p "$portal" -I $iface -o update -n iface.transport_name -v "$transport" >/dev/null 2>&1
  for kv in "$@"; do
    iscsiadm -m node -T "$target" -p "$portal" -I $iface -o update -n "${kv%%=*}" -v "${kv#*=}" >/dev/null || return
  done
  iscsiadm -m node -T "$target" -p "$portal" -I $iface --login
}
iscsi_logout() { iscsiadm -m node -T "$1" -u; }

# disk TARGET [LUN]: prints the device of that unit, waiting for it. Sessions are found by name, not by order.
disk() {
  local i s d
  for ((i = 0; i < 200; i++)); do
    for s in /sys/class/iscsi_session/session*; do
      [ "$(cat "$s/targetname" 2>/dev/null)" = "$1" ] || continue
      for d in "$s"/device/target*/*:"${2:-0}"/block/*; do
        [ -b "/dev/${d##*/}" ] && echo "/dev/${d##*/}" && return
      done
    done
    sleep 0.1
  done
  echo "no disk of $1 lun ${2:-0}" >&2
  return 1
}
session_state() { cat /sys/class/iscsi_session/session*/state 2>/dev/null; }

# ---- targets of the kernel

# lio_up TARGET ADDRESS PORT iser|tcp MIB: a RAM disk as LUN 0 of LIO, by configfs alone
lio_up() {
  local c=/sys/kernel/config/target t np=$2:$3 rd
  case $2 in *:*) np="[$2]:$3" ;; esac
  mkdir -p /etc/target
  modprobe -a target_core_mod iscsi_target_mod || return
  [ "$4" = tcp ] || modprobe ib_isert || return
  rd=$c/core/rd_mcp_0/rd
  [ -d $rd ] || { mkdir -p $rd && echo rd_pages=$(($5 * 256)) >$rd/control && echo 1 >$rd/enable; } || return
  t=$c/iscsi/$1/tpgt_1
  mkdir -p $c/iscsi && mkdir "$c/iscsi/$1" "$t" "$t/lun/lun_0" || return
  if [ "$4" = iser ] && grep -qs RNIC /sys/class/infiniband/*/node_type; then
    # LIO listens with TCP first and then with RDMA on the same port, which for iWARP is the same port space. So the
    # TCP listener is made in a network namespace that nobody else is in.
    unshare -n sh -c "ip link set lo up; ip addr add $2/32 dev lo; mkdir $t/np/$np" || return
  else
    mkdir "$t/np/$np" || return
  fi
  ln -s $rd "$t/lun/lun_0/rd" || return
  [ "$4" = tcp ] || echo 1 >"$t/np/$np/iser" || return
  echo 0 >"$t/attrib/authentication"
  echo 1 >"$t/attrib/generate_node_acls"
  echo 0 >"$t/attrib/demo_mode_write_protect"
  echo 1 >"$t/attrib/cache_dynamic_acls"
  echo 1 >"$t/enable"
}

# lio_patient TARGET INITIATOR: LIO gives this initiator a minute for the data of a write. Those it makes up get 3 seconds,
# less than an emulated machine may be kept from running.
lio_patient() {
  local a=/sys/kernel/config/target/iscsi/$1/tpgt_1/acls/$2
  mkdir "$a" "$a/lun_0" && ln -s "${a%/acls/*}/lun/lun_0" "$a/lun_0/lun_0" && echo 60 >"$a/attrib/dataout_timeout"
}

# nfsd_up DIR: exports DIR over TCP and, when there is an RDMA device, on RDMA port 20049
nfsd_up() {
  modprobe -a nfsd rpcrdma || return
  mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
  mkdir -p /var/lib/nfs/rpc_pipefs /run/rpcbind
  mountpoint -q /var/lib/nfs/rpc_pipefs || mount -t rpc_pipefs none /var/lib/nfs/rpc_pipefs
  touch /var/lib/nfs/etab /var/lib/nfs/rmtab
  rpcbind -w || return
  echo "$1 *(rw,no_root_squash,insecure,no_subtree_check,fsid=1,async)" >/etc/exports
  exportfs -ra || return
  rpc.mountd --port 20048 || return
  rpc.nfsd --grace-time 1 --lease-time 5 4 2>/dev/null || rpc.nfsd 4 || return
  [ -z "$(ls -A /sys/class/infiniband 2>/dev/null)" ] || echo "rdma 20049" >/proc/fs/nfsd/portlist || return
}
nfs_up() {
  modprobe -a nfs nfsv3 nfsv4 rpcrdma || return
  mkdir -p /var/lib/nfs/rpc_pipefs
  mountpoint -q /var/lib/nfs/rpc_pipefs || mount -t rpc_pipefs none /var/lib/nfs/rpc_pipefs
}

# ---- load and checks

# fio_verify FILE SIZE [fio options]: writes at random, reads back, compares CRC32C of each block
fio_verify() {
  local f=$1 size=$2 log=/tmp/fio.$BASHPID
  shift 2
  fio --name=verify --filename="$f" --size="$size" --bsrange=4k-64k --rw=randwrite --direct=1 --ioengine=libaio --iodepth=32 \
    --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting --minimal "$@" >$log 2>$log.err
  local rc=$?
  awk -F';' '/^3;/{printf "## fio verify error=%s read %d KiB/s, write %d KiB/s\n", $5, $7, $48; bad = $5 != 0} END{exit bad || NR == 0}' $log &&
    [ $rc = 0 ] && return
  tail -5 $log.err
  return 1
}

# fio_bench FILE RW BS SECONDS [DEPTH]: one line "bench RW BS IOPS KiB/s"
fio_bench() {
  fio --name=bench --filename="$1" --size="${SIZE:-64m}" --rw="$2" --bs="$3" --runtime="$4" --time_based --direct=1 \
    --ioengine=libaio --iodepth="${5:-8}" --group_reporting --minimal |
    awk -F';' -v l="$2 $3" '/^3;/{printf "bench %s %d %d\n", l, $8 + $49, $7 + $48}'
}

forget_cache() { echo 3 >/proc/sys/vm/drop_caches; }
