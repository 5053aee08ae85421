# dm-multipath over a path of ib_srp and a path of ib_iser to one volume. Each path's port is taken away under fio, in turn, by the
# daemon's own configuration, and the daemon is killed.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
. /lab/files/srp-lib.sh
must "rxe on eth0" rdma_up rxe eth0
must "memory for the volume" vol_up 300
configure_srp 64
sed -i "s|^targets: .*|targets: [{name: \"$TARGET\", alua: both, luns: [{lun: 0, volume: disk}], port_groups: [{group: 1, portals: [1], state: active/optimized, preferred: true}, {group: 2, portals: [2], state: active/non-optimized}]}]|" /tmp/sluiced.yaml
cp /tmp/sluiced.yaml /tmp/both.yaml
must "sluiced" srp_daemon_up
must "ib_srp" srp_up ch_count=2
host=$(srp_ours_login "$TARGET") || fail "login: $(said srp | tail -3)"
must "a path that fails in time" srp_times "$host" 3 5 600
REPLACEMENT_S=5 must "iscsid" iscsid_up # a path that is gone is multipath's affair after that
iscsi_conf 'node.conn\[0\].timeo.noop_out_interval' 2
iscsi_conf 'node.conn\[0\].timeo.noop_out_timeout' 5
must "login, iSER" iscsi_login iser "$TARGET" $ip:3260
cat >/etc/multipath.conf <<E
defaults {
  find_multipaths no
  user_friendly_names yes
  path_grouping_policy group_by_prio
  failback immediate
  no_path_retry queue
  polling_interval 2
  max_polling_interval 4
  fast_io_fail_tmo 5
}
E
must "multipathd" systemctl start multipathd
paths() { [ "$(multipathd show paths | grep -c "active ready")" = "$1" ]; }
must "two paths of one unit" waitfor 90 paths 2
multipath -ll
groups() { multipath -ll | grep -q 'prio=50 status=active' && multipath -ll | grep -q 'prio=10 status=enabled'; }
must "  grouped by ALUA state" waitfor 30 groups
dev=/dev/mapper/$(multipath -ll | awk 'NR == 1 {print $1}')
srp_dev=$(srp_disk "$host") iser_dev=$(disk "$TARGET")

# A reservation through both paths: one host, two I_T nexuses
both_paths() {
  local d
  for d in "$srp_dev" "$iser_dev"; do sg_persist -n --out --register --param-sark=0x77 "$d" || return; done
  sg_persist -n --out --reserve --param-rk=0x77 --prout-type=7 "$srp_dev" || return # write exclusive, all registrants
  for d in "$srp_dev" "$iser_dev"; do
    dd if=/dev/zero of="$d" bs=4096 count=1 oflag=direct status=none || return
    sg_persist -n --in --read-keys "$d" | grep -c 0x77 | grep -qx 2 || return
  done
  ! sluice write "iscsi://$ip:3260/$TARGET/0" /lab/lib.sh 2>/dev/null || { echo "a host without a key wrote"; return 1; }
  sg_persist -n --out --clear --param-rk=0x77 "$srp_dev"
}
must "sg_persist through both paths" both_paths

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
# the sessions by a transport, as the operator's listing has them
ids() { admin session list --output json | tr -d '\n' | tr '{' '\n' | grep "\"transport\": *\"$1\"" | sed -n 's/.*"id": *"\([^"]*\)".*/\1/p'; }
# elsewhere PORT TRANSPORT: the daemon serves at another port in place of this one, and ends the sessions that came by it
elsewhere() {
  sed "s/:$1\"/:1$1\"/" /tmp/both.yaml >/tmp/sluiced.yaml && ! cmp -s /tmp/both.yaml /tmp/sluiced.yaml && admin reload || return
  local i
  for i in $(ids "$2"); do admin session close "$i" --yes || return; done
}
with_all() { cp /tmp/both.yaml /tmp/sluiced.yaml && admin reload; }
must "fio on both paths" goes_on
must "the SRP port goes" elsewhere 5555 SRP
must "  multipath sees it" waitfor 120 paths 1
must "  fio goes on" goes_on
must "the SRP port is back" with_all
must "  multipath sees it" waitfor 240 paths 2
must "the portal of iSER goes" elsewhere 3260 iSER
must "  multipath sees it" waitfor 120 paths 1
must "  fio goes on" goes_on
must "the portal is back" with_all
must "  multipath sees it" waitfor 240 paths 2
must "  fio goes on" goes_on
kill -9 $daemon && wait $daemon
must "no path" waitfor 120 paths 0
must "sluiced again" srp_daemon_up
must "  both paths are back" waitfor 240 paths 2
must "  fio goes on" goes_on
touch /tmp/stop
wait $load
rc=$?
cat /tmp/rounds.log
[ $rc = 0 ] || fail "fio met an error"
multipath -ll
must "the map goes" multipath -f "${dev##*/}"
must "logout" iscsi_logout "$TARGET"
must "logout, SRP" srp_logout "$host"
must "sluiced ends in good order" daemon_down
