# What stands on our initiator, over RoCE by way of libibverbs: a volume as a block device (attach) and as a file system (mount,
# /etc/fstab), a directory of an NFS server (mount), the kernel's NFS client through the gateway.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
modprobe nbd nbds_max=4 && modprobe fuse || fail "nbd and fuse"
export XDG_RUNTIME_DIR=/run
must "rxe on eth0" rdma_up rxe eth0
must "memory for the volume" vol_up 300
configure $ip 128
must "sluiced" daemon_up
install -m755 /lab/files/sluice /usr/bin/sluice
ln -sf /usr/bin/sluice /sbin/mount.sluice && ln -sf /usr/bin/sluice /sbin/umount.sluice
url="iser://$ip:3260/$TARGET/0?provider=verbs"
# over_verbs WHAT: the daemon's only session goes through the adapter
over_verbs() { admin session list | tee /tmp/sessions | grep -q 'verbs rdma0' || { cat /tmp/sessions; return 1; }; }

must "attach" eval 'sluice attach "$url" --face device --name lab --output json >/tmp/attached'
dev=$(grep -o '/dev/nbd[0-9]*' /tmp/attached | head -1)
[ -b "$dev" ] || fail "no device"
must "  by the adapter" over_verbs
must "  fio verify" fio_verify "$dev" 8m
must "detach" sluice detach lab
# It has to be able to fail: bytes of the backing file are changed behind the target
must "attach, by --provider" eval 'sluice attach "${url%\?*}" --provider verbs --face device --name lab --output json >/tmp/attached'
dev=$(grep -o '/dev/nbd[0-9]*' /tmp/attached | head -1)
must "  by the adapter" over_verbs
must "  every block verifies" fio_verify "$dev" 8m --verify_only
spoilt() { dd if=/dev/zero of=/vol/disk.img bs=4096 seek=1000 count=4 conv=notrunc status=none && ! fio_verify "$dev" 8m --verify_only; }
must "  a change behind the target is found" spoilt
must "detach" sluice detach lab

mkdir -p /mnt/v /mnt/f /mnt/g
must "mount, with mkfs" sluice mount "$url" /mnt/v --mkfs ext4 --force --face device
must "  by the adapter" over_verbs
tree() { tar -C / -cf - etc/init.d etc/default etc/iscsi lab/lib.sh | tar -C "$1" -xf - && ( cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum >/tmp/sums ); }
sums() { ( cd "$1" && sha256sum --quiet -c /tmp/sums && echo "## $(wc -l </tmp/sums) files" ); }
must "  a tree" tree /mnt/v
must "umount" sluice umount /mnt/v
echo "$url /mnt/v sluice _netdev,noatime,fstype=ext4,as=nbd 0 0" >>/etc/fstab
must "mount -a, by /etc/fstab" timeout 300 mount -a -t sluice
findmnt -n /mnt/v | grep -q 'ext4.*noatime' || fail "mounted as: $(findmnt -n /mnt/v)"
must "  by the adapter" over_verbs
must "  the tree is there" sums /mnt/v
must "umount" umount /mnt/v
[ "$(sluice attachments -o json)" = "[]" ] || fail "left: $(sluice attachments)"
must "no session is left" waitfor 60 no_session
must "e2fsck of the backing file" e2fsck -fn /vol/disk.img

nfs="nfs+rdma://$ip/data?nfsport=20050&mountport=2050&provider=verbs"
must "mount of a directory" sluice mount "$nfs" /mnt/f
must "  a tree" tree /mnt/f
must "  the same at the server" sums /vol/export
must "  the same, read back" eval "forget_cache; sums /mnt/f"
must "umount" sluice umount /mnt/f
must "the client" nfs_up
sluice gateway "nfs+rdma://$ip/?nfsport=20050&mountport=2050" --provider verbs --listen 127.0.0.1:2051 >/share/out/gateway.txt 2>&1 &
gateway=$!
waitfor 60 listening 2051 || fail "gateway: $(cat /share/out/gateway.txt)"
must "mount through the gateway" timeout 120 mount -t nfs -o vers=3,proto=tcp,port=2051,mountport=2051,mountproto=tcp,nolock,timeo=600 127.0.0.1:/data /mnt/g
must "  the same through it" sums /mnt/g
must "  fio verify" fio_verify /mnt/g/v 8m
must "umount" umount -i /mnt/g
must "the gateway ends in good order" eval "kill $gateway && wait $gateway"
must "sluiced ends in good order" daemon_down
