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
