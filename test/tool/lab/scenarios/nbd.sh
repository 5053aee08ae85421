# A volume of the host's as a block device of the guest's kernel, without any RDMA driver there: sluice attach, which
# is our initiator behind the kernel's nbd. Then a file system on it, in one command.
. /lab/lib.sh
sluice=/lab/files/sluice
modprobe nbd nbds_max=4 || fail "nbd"
export XDG_RUNTIME_DIR=/run
url=iser://10.0.2.2:$PORT/$TARGET/0
attach() { $sluice attach "$url" --face device --name lab --output json >/tmp/attached && cat /tmp/attached && dev=$(grep -o '/dev/nbd[0-9]*' /tmp/attached | head -1) && [ -b "$dev" ]; }
must "attach" attach
[ "$(blockdev --getsize64 "$dev")" = $((256 << 20)) ] || fail "$dev has $(blockdev --getsize64 "$dev") bytes"
pid=$(tr -d '\n ' </tmp/attached | grep -o '"pid":[0-9]*' | grep -o '[0-9]*')
n=$(cat /proc/[0-9]*/comm | grep -c "+${dev#/dev/}-recv\$")
[ "$n" = 4 ] || fail "$n connections of $dev are received on"
# PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE: what PR_SET_IO_FLUSHER sets
for t in /proc/"$pid"/task/*/stat; do
	f=$(sed 's/.*) //' "$t" | cut -d' ' -f7)
	[ $((f & 0x180000)) = $((0x180000)) ] || fail "$t is not of the I/O path: flags $f"
done
must "fio verify" fio_verify "$dev" 32m
must "detach" $sluice detach lab
must "attach again" attach
must "the data are still there" fio_verify "$dev" 32m --verify_only
must "detach" $sluice detach lab
mkdir -p /mnt/v
must "mount, with mkfs" $sluice mount "$url" /mnt/v --mkfs ext4 --force --face device
tree() { tar -C / -cf - etc lab/lib.sh | tar -C /mnt/v -xf - && ( cd /mnt/v && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums ); }
must "a tree" tree
must "umount" $sluice umount /mnt/v
must "mount" $sluice mount "$url" /mnt/v --face device
must "compare" sh -c 'cd /mnt/v && sha256sum --quiet -c /tmp/sums'
must "fstrim" fstrim -v /mnt/v
must "umount" $sluice umount /mnt/v
