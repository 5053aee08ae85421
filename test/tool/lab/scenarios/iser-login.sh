# Discovery and login by open-iscsi over siw, and what it is told when it asks for what it may not have.
. /lab/lib.sh
must "veth" veth_up 1500
must "siw on v0" rdma_up siw v0
a=iqn.2026-11.io.sluice:a b=iqn.2026-11.io.sluice:b closed=iqn.2026-11.io.sluice:closed
cat >/tmp/sluiced.yaml <<E
state_dir: /tmp/state
memory: 64MiB
portals:
  - address: 10.9.0.2:3260
  - address: "[fd09::2]:3260"
volumes:
$(for v in a0 a1 b0 b1 c0; do printf -- '  - name: %s\n    engine: mem\n    size: 16MiB\n' $v; done)
targets:
  - name: $a
    luns: [{lun: 0, volume: a0}, {lun: 1, volume: a1}]
  - name: $b
    luns: [{lun: 0, volume: b0}, {lun: 1, volume: b1}]
  - name: $closed
    luns: [{lun: 0, volume: c0}]
    initiators: [{name: "iqn.2024-01.lab:somebody-else"}]
E
mkdir -p /tmp/state
ip netns exec far /lab/files/sluiced --config /tmp/sluiced.yaml >/share/out/sluiced.txt 2>&1 &
daemon=$!
waitfor 30 far sh -c 'ss -Hltn "sport = :3260" | grep -q fd09' || fail "sluiced does not listen: $(cat /share/out/sluiced.txt)"
must "iscsid" iscsid_up
capture v0 iser-login tcp port 3260

discover() { # discover PORTAL: over iSER, and nobody has to tell it which targets there are
  iscsiadm -m discovery -t sendtargets -p "$1" -I iser >/tmp/found && cat /tmp/found &&
    for t in $a $b; do [ "$(grep -c "$t\$" /tmp/found)" = 2 ] || return 1; done
}
must "discovery, IPv4" discover 10.9.0.2:3260
must "discovery, IPv6" discover '[fd09::2]:3260'
grep -q "$closed" /tmp/found && fail "discovery shows a target that this initiator may not use"

all() { iscsiadm -m node -T $a --login && iscsiadm -m node -T $b --login; }
must "login to two targets by two portals" all
count() { [ "$(ls -d /sys/class/iscsi_session/session*/device/target*/*/block/* | wc -l)" = 8 ]; }
must "four units twice" waitfor 30 count
for t in $a $b; do for l in 0 1; do d=$(disk $t $l) && must "INQUIRY $t $l" sg_inq "$d"; done; done
must "I/O" fio_verify "$(disk $b 1)" 4m
must "logout" iscsiadm -m node --logoutall=all
none() { [ -z "$(ls /sys/class/iscsi_session 2>/dev/null)" ]; }
must "no session is left" waitfor 30 none

refused() { # refused TARGET CLASS/DETAIL
  : >/tmp/iscsid.log
  iscsi_login iser "$1" 10.9.0.2:3260 2>&1 && return 1
  waitfor 10 grep -q "$2" /tmp/iscsid.log || { cat /tmp/iscsid.log; return 1; }
  iscsiadm -m node -T "$1" -o delete
}
must "a name that nobody has: 0203" refused iqn.2026-11.io.sluice:nobody '02/03'
must "a target that is not ours: 0202" refused $closed 'failed authorization'
must "and the others still work" iscsi_login iser $a 10.9.0.2:3260
must "logout" iscsi_logout $a
capture_end
kill $daemon && wait $daemon
must "sluiced ends in good order" test $? = 0
