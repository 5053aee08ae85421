# The Debian package in a machine that systemd booted: what an operator does with it, in order.
. /lab/lib.sh
name=iqn.2026-11.io.sluice:data
lab=iqn.2026-11.io.sluice:lab
unit() { systemctl show -P "$1" "${2:-sluiced}"; }
running() { [ "$(unit ActiveState)" = active ] && [ "$(unit SubState)" = running ]; }
explain() { journalctl -u sluiced -u sluiced-files -u sluiced.socket --no-pager -o cat | tail -60; fail "$@"; }
# A guest that boots with systemd is dear: what fails is said, and the rest still runs.
failures=0
amiss() { echo "## AMISS: $*"; journalctl -u sluiced -u sluiced-files --no-pager -o cat | tail -15; failures=$((failures + 1)); }
want() { step "$@" || amiss "$1"; }
connect() { timeout 60 bash -c "exec 3<>/dev/tcp/127.0.0.1/3260"; }

# ---- install: it runs with the default file, for this machine alone
want "dpkg -i" dpkg -i /lab/files/sluice.deb
want "it is active" waitfor 60 running
want "it starts at boot" systemctl is-enabled sluiced
[ "$(unit User)" = sluice ] && [ "$(stat -c %U:%a /var/lib/sluice)" = sluice:750 ] || amiss "not the user's own state"
[ "$(grep CapBnd "/proc/$(unit MainPID)/status" | tr -d '[:space:]')" = CapBnd:0000000000000000 ] || amiss "it has capabilities"
grep -q 'Max locked memory *1073741824' "/proc/$(unit MainPID)/limits" || amiss "no limit of locked memory"
[ "$(ss -Hltn 'sport = :3260' | awk '{print $4}')" = 127.0.0.1:3260 ] || amiss "it listens elsewhere"
want "sluice status" sluice status
want "the units verify" systemd-analyze verify --man=no sluiced.service sluiced-files.service sluiced.socket
systemd-analyze security --no-pager | grep sluiced | sed 's/^/## /'
want "iscsid" iscsid_up
want "login over TCP" iscsi_login tcp "$name" 127.0.0.1:3260
dev=$(disk "$name") || explain "no disk"
[ "$(blockdev --getsize64 "$dev")" = $((10 << 30)) ] || amiss "$dev has $(blockdev --getsize64 "$dev") bytes"
want "fio verify" fio_verify "$dev" 16m
want "logout" iscsi_logout "$name"

# ---- a failure of the sandbox would be a write that works: the unit's own settings, as its user and as root
cat >/lab/probe <<'P'
#!/bin/bash
# prints what it could do and should not, or could not and should
can() { local what=$1; shift; "$@" >/dev/null 2>&1 && echo "can $what"; }
state=$1
for f in /probe /etc/probe /etc/sluice/probe /usr/probe /boot/probe /root/probe /home/probe /var/probe /var/lib/probe /var/log/probe \
  /opt/probe /srv-other /run/probe /run/lock/probe /dev/shm/probe /lab/probe.out /dev/probe /sys/kernel/mm/ksm/run /proc/sys/kernel/hostname /proc/sysrq-trigger /dev/vda /dev/kmsg; do
  can "write $f" bash -c "echo x >>$f"
done
can "mount" mount -t tmpfs none /tmp
can "make a namespace" unshare -U true
can "make a device" mknod "$state/vda" b 254 0
can "set the clock" date -s @0
can "load a module" modprobe dummy
can "see other processes" test -e /proc/1/status
can "read /etc/shadow" cat /etc/shadow
bash -c "echo x >$state/probe" || echo "cannot write $state"
rm -f "$state/probe"
echo "## done as $(id -u)"
P
chmod 755 /lab/probe
sandbox() { # sandbox UNIT STATE USER ALLOWED
  local d=/run/systemd/system/$1.service.d
  mkdir -p "$d"
  printf '[Service]\nExecStartPre=/bin/bash -c "/lab/probe %s >%s/probe.txt 2>&1"\n' "$2" "$2" >"$d/50-probe.conf"
  # Its group stays: whoever is in root's group sees every process, hidepid or not.
  [ "$3" = root ] && printf 'User=root\n' >>"$d/50-probe.conf"
  systemctl daemon-reload
  # As root the daemon itself may refuse to start for want of rights on its own files: the probe is what counts.
  systemctl stop "$1"; rm -f "$2/probe.txt"; systemctl start "$1" || [ "$3" = root ]
  systemctl stop "$1"; systemctl reset-failed "$1" 2>/dev/null
  sed "s/^/$1 as $3: /" "$2/probe.txt"
  grep -q '## done' "$2/probe.txt" && [ -z "$(grep -v '^##' "$2/probe.txt" | grep -vE "${4:-^$}")" ]
  local rc=$?
  rm -rf "$d" "$2/probe.txt"
  systemctl daemon-reload
  return $rc
}
want "the block service's sandbox" sandbox sluiced /var/lib/sluice sluice
want "the block service's sandbox, were it root" sandbox sluiced /var/lib/sluice root '^can read /etc/shadow$'
want "the file service's sandbox" sandbox sluiced-files /var/lib/sluice-files root '^can (read /etc/shadow|make a device)$'
chown -R sluice: /var/lib/sluice

# ---- the file service, as an operator would start it
want "the file service starts" systemctl start sluiced-files
# CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, SETGID, SETUID, NET_BIND_SERVICE and MKNOD: bits 0 to 3, 6, 7, 10 and 27
for set in CapBnd CapEff; do
  [ "$(awk "/$set/{print \$2}" "/proc/$(unit MainPID sluiced-files)/status")" = 00000000080004cf ] || amiss "other capabilities: $(grep Cap "/proc/$(unit MainPID sluiced-files)/status")"
done
grep -q 'caller acts as' <(journalctl -u sluiced-files --no-pager -o cat -n 20) && amiss "it cannot act as its callers"
chmod 1777 /var/lib/sluice-files/exports/default
modprobe -a nfs nfsv3
mkdir -p /mnt/n
nfs() { mount -t nfs -o vers=3,proto=tcp,port=2049,mountport=2049,mountproto=tcp,nolock,noac "127.0.0.1:/$1" /mnt/n; }
as() { setpriv --reuid "$1" --regid "$1" "${@:2}"; }
owner() { [ "$(stat -c %u:%g "$2")" = "$1" ] || amiss "$2 belongs to $(stat -c %u:%g "$2"), not to $1"; }
want "the kernel mounts" nfs default
want "user 1234 writes" as 1234 --clear-groups bash -c 'echo mine >/mnt/n/mine && chmod 600 /mnt/n/mine && mkdir -m 700 /mnt/n/room && echo in >/mnt/n/room/in'
owner 1234:1234 /var/lib/sluice-files/exports/default/mine
want "and reads" as 1234 --clear-groups grep -q mine /mnt/n/mine
as 2345 --clear-groups cat /mnt/n/mine 2>/dev/null && amiss "another user reads a private file"
as 2345 --clear-groups cat /mnt/n/room/in 2>/dev/null && amiss "another user looks into a private directory"
as 2345 --clear-groups bash -c 'echo theirs >>/mnt/n/mine' 2>/dev/null && amiss "another user writes a private file"
as 2345 --clear-groups rm -f /mnt/n/mine 2>/dev/null && amiss "another user removes a file from a sticky directory"
cat /mnt/n/mine >/dev/null 2>&1 && amiss "root, who is nobody here, reads a private file"
want "two users write at once" bash -c 'p=; for u in 1234 2345; do setpriv --reuid $u --regid $u --clear-groups bash -c "for i in \$(seq 20); do echo \$i >/mnt/n/\$UID-\$i || exit 1; done" & p="$p $!"; done; for i in $p; do wait $i || exit 1; done'
for u in 1234 2345; do
  [ "$(find /var/lib/sluice-files/exports/default -name "$u-*" -user $u -group $u | wc -l)" = 20 ] || amiss "user $u has other files"
done
want "umount" umount /mnt/n
# Exports that a reload adds, each with another rule about whose requests are nobody's.
mkdir -p /etc/sluice/files.yaml.d
for e in root all none; do mkdir -p /srv/$e && chmod 777 /srv/$e; done
install -d -o 1234 -g 5000 -m 2770 /srv/none/team
cat >/etc/sluice/files.yaml.d/10-lab.yaml <<'Y'
exports:
  - {name: /root, path: /srv/root, clients: [{match: 127.0.0.1, squash: root}]}
  - {name: /all, path: /srv/all, anon_uid: 4000, anon_gid: 4001, clients: [{match: 127.0.0.1, squash: all}]}
  - {name: /none, path: /srv/none, clients: [{match: 127.0.0.1, squash: none}]}
  - {name: /ro, path: /srv/none, clients: [{match: 127.0.0.1, read_only: true}]}
  - {name: /far, path: /srv/none, clients: [{match: 192.0.2.1}]}
Y
want "reload of the file service" systemctl reload sluiced-files
want "its exports are there" waitfor 60 sh -c 'sluice exports --socket /var/lib/sluice-files/admin.sock | grep -q /far'
for e in root:65534:65534:1234:1234 all:4000:4001:4000:4001 none:0:0:1234:1234; do
  IFS=: read -r e u g u2 g2 <<<"$e"
  want "mount /$e" nfs "$e"
  want "root writes to /$e" sh -c 'echo x >/mnt/n/by-root'
  want "user 1234 writes to /$e" as 1234 --clear-groups sh -c 'echo x >/mnt/n/by-user'
  owner "$u:$g" /srv/$e/by-root
  owner "$u2:$g2" /srv/$e/by-user
  if [ $e = none ]; then
    want "a group's member writes" as 2345 --groups 5000 sh -c 'echo x >/mnt/n/team/t'
    owner 2345:5000 /srv/none/team/t
    as 2345 --clear-groups cat /mnt/n/team/t 2>/dev/null && amiss "who is no member reads"
    want "root gives a file away" chown 2345:5000 /mnt/n/by-root
    owner 2345:5000 /srv/none/by-root
    want "root makes a device node" mknod /mnt/n/dev b 7 99
  fi
  want "umount /$e" umount /mnt/n
done
want "mount /ro" nfs ro
sh -c 'echo x >/mnt/n/by-user' 2>/dev/null && amiss "a read-only export was written"
want "umount /ro" umount /mnt/n
nfs far 2>/dev/null && amiss "a client was let in that no rule names"
want "the file service stops" systemctl stop sluiced-files

# ---- the socket unit: nobody is refused while the service restarts
want "the socket" systemctl enable --now sluiced.socket
want "start" systemctl start sluiced
journalctl -u sluiced --no-pager -o cat -n 30 | grep -q "no portal's" && amiss "the socket was not taken"
# The first export opens the file service while blocks are served, the last one closes it.
nfs_port() { [ -n "$(ss -Hltn 'sport = :2049')" ]; }
nfs_port && amiss "the block service serves files unasked"
want "the first export" sluice exports add /here /var/lib/sluice
nfs_port || amiss "the file service did not open"
want "mount it" nfs here
want "umount it" umount /mnt/n
want "the last export" sluice exports remove /here --yes
nfs_port && amiss "the file service stays open without an export"
want "its configuration" sh -c 'sluice config show --live | grep -q "name: data"'
knock() { local n=0; while [ ! -e /tmp/knocked ]; do connect || return 1; n=$((n + 1)); done; echo "## $n connections, none refused"; }
knock & knocker=$!
want "restart" systemctl restart sluiced
want "once more" systemctl restart sluiced
touch /tmp/knocked
want "nobody was refused" wait $knocker
want "the socket goes" systemctl disable --now sluiced.socket
systemctl stop sluiced

# ---- under load, over iSER: the far end of a wire, with the same unit
want "veth" veth_up 1500
want "siw" rdma_up siw v0
mkdir -p /etc/systemd/system/sluiced.service.d /etc/sluice/sluiced.yaml.d
printf '[Service]\nNetworkNamespacePath=/run/netns/far\n' >/etc/systemd/system/sluiced.service.d/50-lab.conf
cat >/etc/sluice/sluiced.yaml.d/10-lab.yaml <<'Y'
portals:
  - address: 10.9.0.2:3260
volumes:
  - {name: lab, size: 256MiB}
targets:
  - name: iqn.2026-11.io.sluice:lab
    luns: [{lun: 0, volume: lab}]
Y
want "daemon-reload" systemctl daemon-reload
want "start in the far namespace" systemctl start sluiced
want "the volume is made" sluice volume create lab
want "login over iSER" iscsi_login iser $lab 10.9.0.2:3260
dev=$(disk $lab) || explain "no disk"
written() { awk '{print $7}' "/sys/block/${dev##*/}/stat"; }
load() { # a fio in the background that writes for as long as a step takes
  from=$(written)
  fio_verify "$dev" "$1" >/tmp/verify 2>&1 &
  fio=$!
  busy() { [ "$(($(written) - from))" -gt 1000 ]; }
  waitfor 120 busy || amiss "fio does not write"
}
loaded() { kill -0 $fio 2>/dev/null; }
ended() { step "fio ends well" wait $fio; local rc=$?; cat /tmp/verify; return $rc; }
session() { basename /sys/class/iscsi_session/session*; }

load 48m
before=$(session) pid=$(unit MainPID) log=$(wc -l </tmp/iscsid.log)
cat >/etc/sluice/sluiced.yaml.d/20-more.yaml <<'Y'
volumes:
  - {name: more, size: 64MiB}
targets:
  - name: iqn.2026-11.io.sluice:more
    luns: [{lun: 0, volume: more}]
Y
want "systemctl reload" systemctl reload sluiced
want "the volume is made" waitfor 60 sluice volume create more
want "the volume is there" waitfor 60 sh -c 'sluice volume list | grep -q more'
loaded || amiss "fio ended before the reload: the load is too small"
want "the new target is found" sh -c 'iscsiadm -m discovery -t sendtargets -p 10.9.0.2:3260 | grep -q sluice:more'
[ "$(unit MainPID)" = "$pid" ] && running || amiss "the service is another one"
ended || amiss "fio felt the reload"
[ "$(session)" = "$before" ] && ! tail -n "+$((log + 1))" /tmp/iscsid.log | grep -qi error || { cat /tmp/iscsid.log; amiss "the session felt the reload"; }
printf 'volumes: [{name: bad, size: 1}]\n' >/etc/sluice/sluiced.yaml.d/30-bad.yaml
systemctl reload sluiced
want "a wrong file is refused" waitfor 60 sh -c "journalctl -u sluiced --no-pager -o cat | grep -q 'configuration not changed'"
running && [ "$(unit MainPID)" = "$pid" ] || amiss "a wrong file ended the service"
rm /etc/sluice/sluiced.yaml.d/30-bad.yaml

load 48m
want "systemctl restart" systemctl restart sluiced
loaded || amiss "fio ended before the restart: the load is too small"
[ "$(unit MainPID)" != "$pid" ] || amiss "the service is still the old one"
ended || amiss "the restart lost something"
want "every block verifies" fio_verify "$dev" 48m --verify_only

load 48m
pid=$(unit MainPID)
kill -STOP "$pid"
restarted() { [ "$(unit NRestarts)" -ge 1 ] && running && [ "$(unit MainPID)" != "$pid" ]; }
want "the watchdog restarts a hung daemon" waitfor 180 restarted
journalctl -u sluiced --no-pager -o cat | grep -a -m1 -i watchdog | sed 's/^/## /'
ended || amiss "the watchdog's restart lost something"
want "every block verifies" fio_verify "$dev" 48m --verify_only
want "logout" iscsi_logout $lab

# ---- stop drains at once when nobody is there; remove keeps the volumes, purge keeps nothing
want "systemctl stop" systemctl stop sluiced
[ "$(unit Result)" = success ] || amiss "it ended with $(unit Result)"
want "start" systemctl start sluiced
want "dpkg -r" dpkg -r sluice
running && amiss "it runs although it is removed"
[ -s /var/lib/sluice/lab.img ] && [ -e /etc/sluice/sluiced.yaml ] || amiss "removing took volumes or configuration"
want "dpkg -i again" dpkg -i /lab/files/sluice.deb
want "it is active again" waitfor 60 running
sluice volume list | grep -q more || amiss "the volumes are not served again"
want "upgrade" dpkg -i /lab/files/sluice.deb
want "it is active after the upgrade" waitfor 60 running
rm -rf /etc/systemd/system/sluiced.service.d # the operator's own
want "dpkg -P" dpkg -P sluice
# iscsid's own records of the targets stay, of course
left=$(find / -xdev \( -path /proc -o -path /sys -o -path /lab -o -path /share -o -path /tmp -o -path /var/log -o -path /etc/iscsi -o -path /var/lib/iscsi \) -prune -o -iname '*sluice*' -print
  getent passwd sluice; getent group sluice; find /run -maxdepth 1 -iname '*sluice*')
[ -z "$left" ] || amiss "purging leaves $left"
[ -z "$(ss -Hltn 'sport = :3260')" ] || amiss "somebody still listens"
[ -z "$(pgrep -x sluiced)" ] || amiss "a daemon still runs"
[ $failures = 0 ] || fail "$failures things were amiss"
