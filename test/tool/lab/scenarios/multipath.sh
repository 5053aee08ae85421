# dm-multipath over a path of iSER and a path of TCP, in two target port groups. Each path fails under fio, in turn.
. /lab/lib.sh
must "veth" veth_up 1500
second_veth() {
  ip link add w0 type veth peer name w1 && ip link set w1 netns far &&
    ip link set w0 up && ip addr add 10.8.0.1/24 dev w0 && ip -n far link set w1 up && ip -n far addr add 10.8.0.2/24 dev w1
}
must "a second veth" second_veth
must "siw on v0" rdma_up siw v0
mkdir -p /tmp/state
cat >/tmp/sluiced.yaml <<E
state_dir: /tmp/state
memory: 64MiB
portals:
  - {address: "10.9.0.2:3260", group: 1}
  - {address: "10.8.0.2:3260", group: 2}
volumes:
  - {name: disk, engine: mem, size: 64MiB}
targets:
  - name: $TARGET
    alua: both
    port_groups:
      - {group: 1, portals: [1], state: active/optimized, preferred: true}
      - {group: 2, portals: [2], state: active/non-optimized}
    luns: [{lun: 0, volume: disk}]
E
ip netns exec far /lab/files/sluiced --config /tmp/sluiced.yaml >/share/out/sluiced.txt 2>&1 &
daemon=$!
waitfor 60 far sh -c 'ss -Hltn "sport = :3260" | grep -q 10.8' || fail "sluiced does not listen: $(cat /share/out/sluiced.txt)"
REPLACEMENT_S=5 must "iscsid" iscsid_up # a path that is gone is multipath's affair after that
iscsi_conf 'node.conn\[0\].timeo.noop_out_interval' 2
iscsi_conf 'node.conn\[0\].timeo.noop_out_timeout' 5
must "login, iSER" iscsi_login iser "$TARGET" 10.9.0.2:3260
must "login, TCP" iscsi_login tcp "$TARGET" 10.8.0.2:3260
# Nothing about this target: what multipath does not know it finds out (TPGS in INQUIRY, RTPG).
cat >/etc/multipath.conf <<E
defaults {
  find_multipaths no
  user_friendly_names yes
  path_grouping_policy group_by_prio
  failback immediate
  no_path_retry queue
  polling_interval 2
  max_polling_interval 4
}
E
must "multipathd" systemctl start multipathd
# The daemon is asked: multipath -ll looks at every path itself, and waits for one that is gone.
paths() { [ "$(multipathd show paths | grep -c "active ready")" = "$1" ]; }
must "two paths of one unit" waitfor 60 paths 2
multipath -ll
groups() { multipath -ll | grep -q 'prio=50 status=active' && multipath -ll | grep -q 'prio=10 status=enabled'; }
must "  grouped by ALUA state" waitfor 30 groups
dev=/dev/mapper/$(multipath -ll | awk 'NR == 1 {print $1}')
path_dev=$(multipath -ll | grep -A1 'prio=50' | grep -o 'sd[a-z]' | head -1)
must "sg_rtpg" sg_rtpg --decode "/dev/$path_dev"

# Rounds of writing and verifying, until they are told to stop: one failed request ends them.
rounds() {
  local n=0
  while [ ! -e /tmp/stop ]; do
    fio_verify "$dev" 8m || return 1
    n=$((n + 1))
    echo $n >/tmp/rounds
  done
}
echo 0 >/tmp/rounds
rounds >/tmp/rounds.log 2>&1 &
load=$!
goes_on() { # two more rounds end
  local from
  from=$(cat /tmp/rounds)
  more() { [ "$(cat /tmp/rounds)" -ge $((from + 2)) ] || ! kill -0 $load; }
  waitfor 300 more && kill -0 $load
}
must "fio on both paths" goes_on
must "the iSER path fails" ip link set v0 down
must "  multipath sees it" waitfor 120 paths 1
must "  fio goes on" goes_on
must "the iSER path is back" ip link set v0 up
must "  multipath sees it" waitfor 240 paths 2
must "  fio goes on" goes_on
must "the TCP path fails" ip link set w0 down
must "  multipath sees it" waitfor 120 paths 1
must "  fio goes on" goes_on
must "the TCP path is back" ip link set w0 up
must "  multipath sees it" waitfor 240 paths 2
touch /tmp/stop
wait $load
rc=$?
cat /tmp/rounds.log
[ $rc = 0 ] || fail "fio met an error"
multipath -ll
must "the map goes" multipath -f "${dev##*/}"
must "logout" iscsi_logout "$TARGET"
kill $daemon && wait $daemon
must "sluiced ends in good order" test $? = 0
