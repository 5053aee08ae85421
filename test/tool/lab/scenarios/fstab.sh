# A machine whose volumes come at boot: /etc/sluicetab by sluice-map.service, /etc/fstab by mount.sluice, in the order
# that systemd gives them. The script is started while the machine boots, so it writes the tables, has systemd read them,
# and then starts remote-fs.target, which is what a boot does with them; then the same backwards, and once more.
. /lab/lib.sh
modprobe nbd nbds_max=8 || fail "nbd"
url=iser://10.0.2.2:$PORT/$TARGET/0 url1=iser://10.0.2.2:$PORT/$TARGET/1
install -m755 /lab/files/sluice /usr/bin/sluice
ln -sf /usr/bin/sluice /sbin/mount.sluice && ln -sf /usr/bin/sluice /sbin/umount.sluice
cp /lab/files/sluice-map.service "/lab/files/sluice-attach@.service" /etc/systemd/system/
must "units are well-formed" systemd-analyze verify --man=no /etc/systemd/system/sluice-map.service /etc/systemd/system/sluice-attach@data.service

must "a file system on the first volume" sh -c "mkdir -p /mnt/data && sluice mount $url /mnt/data --mkfs ext4 --face device && umount /mnt/data"
[ "$(sluice attachments -o json)" = "[]" ] || fail "umount(8) left an attachment: $(sluice attachments)"
# four connections of the kernel's, each with its receive thread
must "attach" sluice attach "$url1" --name count --face device
dev=$(sluice attachments -o json | grep -o '/dev/nbd[0-9]*' | head -1)
n=$(cat /proc/[0-9]*/comm | grep -c "+${dev#/dev/}-recv\$")
[ "$n" = 4 ] || fail "$n connections of $dev are received on"
must "fio verify on the device" fio_verify "$dev" 32m
must "detach" sluice detach count

cat >>/etc/fstab <<E
iser://10.0.2.2:$PORT/$TARGET/0  /mnt/data  sluice  _netdev,noatime,fstype=ext4,as=nbd,reconnect=5m  0  0
E
cat >/etc/sluicetab <<E
# by sluice-map.service
raw    $url1  -  as=nbd,reconnect=forever
# by sluice-attach@later.service
later  $url1  -  as=nbd,noauto,ro
E
systemctl daemon-reload && systemctl enable sluice-map.service || fail "enable"
mkdir -p /mnt/data
boot() { timeout 300 systemctl start remote-fs.target && waitfor 60 mountpoint -q /mnt/data && waitfor 60 systemctl is-active -q sluice-map.service; }
must "boot" boot || { systemctl status --no-pager mnt-data.mount sluice-map.service; journalctl -b --no-pager | tail -50; }
systemctl show -P After mnt-data.mount | grep -q network-online.target || fail "the mount does not wait for the network"
findmnt -n /mnt/data | grep -q 'ext4.*noatime' || fail "mounted as: $(findmnt -n /mnt/data)"
sluice attachments
sluice attachments -o json | grep -q '"name": "raw"' || fail "raw is not attached"
must "mount -a finds nothing to do" mount -a
[ "$(findmnt -n /mnt/data | wc -l)" = 1 ] || fail "mounted twice"
must "fio verify on the file system" fio_verify /mnt/data/v 32m
tree() { tar -C / -cf - etc lab/lib.sh | tar -C /mnt/data -xf - && ( cd /mnt/data && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums ); }
must "a tree" tree
raw=$(sluice attachments -o json | tr -d '\n ' | grep -o '"name":"raw"[^}]*' | grep -o '/dev/nbd[0-9]*' | head -1)
must "fio verify on the mapped device" fio_verify "$raw" 16m

shut() { systemctl stop mnt-data.mount sluice-map.service && ! mountpoint -q /mnt/data && [ "$(sluice attachments -o json)" = "[]" ]; }
must "shut down" shut || { sluice attachments; journalctl -b --no-pager | tail -50; }
systemctl is-failed mnt-data.mount sluice-map.service && fail "a unit failed"
pgrep -x sluice && fail "a helper is left"
systemctl stop remote-fs.target
must "boot again" boot
must "the tree is there" sh -c 'cd /mnt/data && sha256sum --quiet -c /tmp/sums'
must "shut down again" shut

# One volume under the service manager: it is up when systemd says so, and comes again when its helper is killed.
must "sluice-attach@later" timeout 120 systemctl start sluice-attach@later.service
pid=$(systemctl show -P MainPID sluice-attach@later.service)
sluice attachments -o json | grep -q "\"pid\": $pid" || fail "the record names another process than $pid: $(sluice attachments -o json)"
kill -KILL "$pid"
again() { p=$(systemctl show -P MainPID sluice-attach@later.service) && [ "$p" != 0 ] && [ "$p" != "$pid" ] && systemctl is-active -q sluice-attach@later.service; }
must "it is attached again after a kill" waitfor 60 again
sluice attachments
nbds=$(grep -c . <(cat /sys/block/nbd*/backend 2>/dev/null))
[ "$nbds" = 1 ] || fail "$nbds devices are in use: $(head /sys/block/nbd*/backend)"
must "stop" systemctl stop sluice-attach@later.service
[ "$(sluice attachments -o json)" = "[]" ] || fail "left: $(sluice attachments)"
