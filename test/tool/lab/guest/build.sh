#!/bin/bash
# Builds the guest of the kernel lab: Debian's kernel as it is, the siw module that Debian does not enable (from
# Debian's own kernel source), a root disk and an initrd. Each stage is remembered by a stamp; a second run takes
# a moment.
#
#   LAB_CACHE       where everything is kept (default ${XDG_CACHE_HOME:-~/.cache}/sluice-lab), about 2 GB a kernel
#   LAB_KERNEL      stock (default): the kernel that linux-image-amd64 names; or a series that Debian has beside it, e.g.
#                   6.12, for linux-image-6.12-amd64. Each has its own image; they share the user space.
#   LAB_KREL        kernel release without flavour, e.g. 6.1.0-56, instead of the one that the package names
#   LAB_SUITE       Debian suite of the root disk (default: the host's)
#   LAB_SOURCES     a sources.list for mmdebstrap (default: its own choice)
#   LAB_PACKAGES    more packages for the root disk, comma separated
#   LAB_ROOT_MB     size of the root disk in MiB (default 1536, sparse)
#   LAB_NO_APT=1    do not install missing tools on the host, say what is missing
#
# The host is Debian on amd64; root is needed for chroot and for a root disk whose files belong to root.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-lab}
PATH=$PATH:/usr/sbin:/sbin
die() { echo "guest: $*" >&2; exit 1; }
say() { echo "guest [${SECONDS}s]: $*" >&2; }
[ "$(id -u)" = 0 ] || die "building the guest needs root (chroot, owners on the root disk)"
variant=${LAB_KERNEL:-stock}
mkdir -p "$cache/debs" "$cache/image-$variant"
cache=$(cd "$cache" && pwd)
out=$cache/image-$variant
exec 9>"$cache/lock"
flock 9

fresh() { [ "$(cat "$cache/$1.stamp" 2>/dev/null)" = "$2" ]; }
done_() { echo "$2" >"$cache/$1.stamp"; }
digest() { sha256sum | cut -c1-16; }
# quietly NAME CMD...: the output goes to a log that is shown only when the command fails
quietly() {
  local log=$cache/$1.log; shift
  "$@" >"$log" 2>&1 || { tail -30 "$log" >&2; die "$1 failed, see $log"; }
}

host_tools() {
  local want missing=() t
  want="mmdebstrap:mmdebstrap depmod:kmod mkfs.ext4:e2fsprogs make:make gcc:gcc xz:xz-utils zstd:zstd qemu-system-x86_64:qemu-system-x86"
  for t in $want; do command -v "${t%%:*}" >/dev/null || missing+=("${t#*:}"); done
  [ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
  ldconfig -p | grep -q libelf.so.1 || missing+=(libelf1) # the kernel headers' objtool
  [ ${#missing[@]} -gt 0 ] || return 0
  [ -z "${LAB_NO_APT:-}" ] || die "missing packages: ${missing[*]}"
  refresh
  say "installing ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive quietly host-apt apt-get install -y --no-install-recommends "${missing[@]}"
}

# refresh: the host's package lists may be missing or name what the mirror no longer has
refreshed=
refresh() {
  [ -z "$refreshed" ] && [ -z "${LAB_NO_APT:-}" ] || return 0
  refreshed=1
  say "apt-get update"
  quietly apt-update apt-get update
}
# fetch PACKAGE...: the named binary packages into debs/, unless they are there
fetch() {
  local p get=(apt-get -o APT::Sandbox::User=root download)
  for p in "$@"; do
    compgen -G "$cache/debs/${p%%=*}_*.deb" >/dev/null && continue
    ( cd "$cache/debs" && "${get[@]}" "$p" >"$cache/fetch.log" 2>&1 ) && continue
    refresh
    ( cd "$cache/debs" && quietly fetch "${get[@]}" "$p" )
  done
}
unpack() { dpkg-deb -x "$cache/debs/$1"_*.deb "$2"; }
depends() { apt-cache depends "$1" | sed -n "s/^ *Depends: \($2\)\$/\1/p" | head -1; }

kernel() {
  local meta=linux-image-amd64 pin=$cache/kernel-$variant
  [ "$variant" = stock ] || meta=linux-image-$variant-amd64
  if [ -n "${LAB_KREL:-}" ]; then krel=$LAB_KREL
  elif [ -s "$pin" ]; then krel=$(cat "$pin") # what is cached stays in use
  else
    for _ in once again; do
      krel=$(depends "$meta" 'linux-image-.*-amd64' | sed 's/^linux-image-//; s/-amd64$//')
      [ -z "$krel" ] || break
      refresh
    done
  fi
  [ -n "$krel" ] || die "cannot tell the kernel release: run apt-get update, or set LAB_KREL"
  echo "$krel" >"$pin"
  kver=$krel-amd64 kimg=$cache/kimg-$krel-amd64 siwdir=$cache/siw-$krel
  if ! fresh "kimg-$krel" "$kver"; then
    say "kernel $kver"
    fetch "linux-image-$kver"
    rm -rf "$kimg"
    unpack "linux-image-$kver" "$kimg"
    done_ "kimg-$krel" "$kver"
  fi
  kmods=$kimg/lib/modules/$kver
  [ -d "$kmods" ] || kmods=$kimg/usr/lib/modules/$kver
}

# siw.ko is the distribution's source untouched. siw_knobs.ko is the same with its constants turned into module
# parameters, so that a scenario can ask for CRC, for MPA revision 1 or for peer-to-peer set-up.
siw() {
  siwkey="$kver recipe-2"
  fresh "siw-$krel" "$siwkey" && return
  say "siw for $kver"
  local base deb hdr=$cache/headers h common kbuild k v knobs=$siwdir/knobs
  base=$(grep -o '^[0-9]*\.[0-9]*' <<<"$krel")
  deb=$(dpkg-deb -f "$cache/debs/linux-image-${kver}"_*.deb Version)
  common=$(depends "linux-headers-$kver" 'linux-headers-.*-common')
  kbuild=$(depends "linux-headers-$kver" 'linux-kbuild-.*')
  fetch "linux-headers-$kver" "$common" "$kbuild" "linux-source-$base=$deb"
  rm -rf "$hdr" "$siwdir"
  mkdir -p "$hdr" "$siwdir/stock"
  for k in "linux-headers-$kver" "$common" "$kbuild"; do unpack "$k" "$hdr"; done
  h=$hdr/usr/src/linux-headers-$kver
  # the headers' makefiles name each other by absolute path
  sed -i "s,/usr/src/,$hdr/usr/src/,g; s,/usr/lib/linux-kbuild,$hdr/usr/lib/linux-kbuild,g" "$h/Makefile" "$h/.kernelvariables"
  dpkg-deb --fsys-tarfile "$cache/debs/linux-source-${base}"_*.deb |
    tar -xO --wildcards './usr/src/linux-source-*.tar.xz' 2>/dev/null |
    tar -xJ -C "$siwdir/stock" --strip-components=5 "linux-source-$base/drivers/infiniband/sw/siw"
  [ -f "$siwdir/stock/siw_main.c" ] || die "no siw in linux-source-$base"
  cp -r "$siwdir/stock" "$knobs"
  sed -i 's/^extern const bool/extern bool/' "$knobs/siw.h"
  for k in zcopy_tx try_gso loopback_enabled mpa_crc_required mpa_crc_strict siw_tcp_nagle peer_to_peer; do
    sed -i "s/^const bool \($k\)\b\(.*\)\$/bool \1\2\nmodule_param($k, bool, 0644);/" "$knobs/siw_main.c"
  done
  sed -i 's/^u_char mpa_version = .*$/&\nmodule_param(mpa_version, byte, 0644);/' "$knobs/siw_main.c"
  sed -i 's/^static const \(bool relaxed_ird_negotiation.*\)$/static \1\nmodule_param(relaxed_ird_negotiation, bool, 0644);/' "$knobs/siw_cm.c"
  sed -i 's/siw\.o/siw_knobs.o/; s/^siw-y/siw_knobs-y/' "$knobs/Makefile"
  for v in stock knobs; do
    quietly "siw-$v" make -j"$(nproc)" -C "$h" M="$siwdir/$v" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= modules
  done
  strip --strip-debug "$siwdir/stock/siw.ko" "$knobs/siw_knobs.ko"
  rm -rf "$cache/debs/linux-source-${base}"_*.deb "$hdr" # large, and not needed again
  done_ "siw-$krel" "$siwkey"
}

userland() {
  suite=${LAB_SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
  local pkgs=busybox-static,iproute2,iputils-ping,kmod,procps,psmisc,strace,tcpdump,netcat-openbsd,ethtool
  pkgs+=,rdma-core,ibverbs-providers,ibverbs-utils,rdmacm-utils,infiniband-diags,perftest
  pkgs+=,open-iscsi,libiscsi-bin,sg3-utils,tgt,multipath-tools,dmsetup
  pkgs+=,nfs-common,nfs-kernel-server,rpcbind,nbd-client,nvme-cli
  pkgs+=,fio,e2fsprogs,xfsprogs,attr,acl,fuse3,libnbd-bin,libnfs-utils
  pkgs+=,tcc,libc6-dev,make # something to build on a mount
  pkgs+=,systemd-sysv,udev,dbus,adduser # for guests that boot as a machine does
  pkgs+=${LAB_PACKAGES:+,$LAB_PACKAGES}
  userkey="$suite $pkgs ${LAB_SOURCES:+$(digest <"$LAB_SOURCES")}"
  fresh rootfs "$userkey" && return
  say "user space ($suite)"
  rm -rf "$cache/rootfs"
  local o=() d
  for d in man locale doc info; do o+=("--dpkgopt=path-exclude=/usr/share/$d/*"); done
  quietly rootfs mmdebstrap --variant=minbase --include="$pkgs" --aptopt='APT::Install-Recommends "false"' "${o[@]}" \
    "$suite" "$cache/rootfs" ${LAB_SOURCES:+"$LAB_SOURCES"}
  done_ rootfs "$userkey"
}

# rdmacheck is compiled on the host against the guest's own libraries; only headers come from the -dev packages. The headers
# stay: binaries with the verbs provider are built with them.
programs() {
  progkey="$userkey headers $(digest <"$here/rdmacheck.c")"
  fresh check "$progkey" && return
  say "rdmacheck"
  local dev=$cache/dev lib=$cache/rootfs/usr/lib/x86_64-linux-gnu
  fetch librdmacm-dev libibverbs-dev
  rm -rf "$dev"
  unpack librdmacm-dev "$dev"
  unpack libibverbs-dev "$dev"
  quietly rdmacheck gcc -std=gnu11 -O2 -Wall -Wextra -Werror -I"$dev/usr/include" -o "$cache/rdmacheck" "$here/rdmacheck.c" \
    "$lib/librdmacm.so.1" "$lib/libibverbs.so.1" -Wl,-rpath-link,"$lib" -Wl,--allow-shlib-undefined -lpthread
  done_ check "$progkey"
}

modules="ib_uverbs ib_umad rdma_ucm rdma_rxe ib_iser ib_isert ib_srp ib_srpt iscsi_tcp rpcrdma nfs nfsv3 nfsv4 nfsd auth_rpcgss
 iscsi_target_mod target_core_mod target_core_file target_core_iblock target_core_user
 nvme-rdma nvme-tcp nvmet nvmet-rdma nvmet-tcp nbd ublk_drv null_blk brd loop scsi_debug sd_mod sg
 dm-mod dm-multipath scsi_dh_alua dm-round-robin dm-service-time dm-flakey dm-delay dm-log-writes
 virtio_pci virtio_blk virtio_net virtio_console virtio-rng 9p 9pnet_virtio
 ext4 xfs btrfs overlay fuse configfs dummy veth bridge sch_netem sch_tbf sch_fq
 nf_tables nft_compat nft_ct nft_limit nft_reject_inet ip_tables iptable_filter
 crc32c-intel crc32c_generic crc32-pclmul crct10dif-pclmul crc-t10dif libcrc32c
 sha256_generic sha512_generic md5 sha1_generic hmac cmac ccm gcm"
bootmods="virtio_pci virtio_blk ext4 crc32c_generic"

image() {
  local key all=$cache/tree r=$cache/rootfs i=$cache/initrd.d p d
  key="$kver $suite ${LAB_ROOT_MB:-1536} $({ echo "$modules $bootmods $userkey $siwkey $progkey"; cat "$here"/build.sh "$here"/*init "$here"/lab.service; } | digest)"
  fresh "image-$variant" "$key" && return
  say "modules"
  rm -rf "$all" && mkdir -p "$all/lib/modules/$kver/extra"
  cp -al "$kmods/." "$all/lib/modules/$kver/"
  cp "$siwdir/stock/siw.ko" "$siwdir/knobs/siw_knobs.ko" "$all/lib/modules/$kver/extra/"
  depmod -b "$all" "$kver"
  # in load order, with all they need; a module this kernel has not got is left out
  closure() {
    local m
    for m in "$@"; do
      modprobe -S "$kver" -d "$all" -D "$m" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p' || say "this kernel has no $m"
    done | awk '!seen[$0]++'
  }
  plain() { # newer kernels compress their modules
    local b=${1##*/}
    case $b in
    *.xz) xz -dc "$1" >"$2/${b%.xz}" ;;
    *.zst) zstd -qdc "$1" >"$2/${b%.zst}" ;;
    *) cp "$1" "$2/" ;;
    esac
  }
  rm -rf "$r/lib/modules" "$r/lab"
  mkdir -p "$r/lib/modules/$kver" "$r/lab"
  # shellcheck disable=SC2086
  closure $modules siw siw_knobs | while read -r p; do
    d=$r/lib/modules/$kver/${p#"$all/lib/modules/$kver/"}
    mkdir -p "${d%/*}" && plain "$p" "${d%/*}"
  done
  cp "$kmods"/modules.builtin* "$kmods/modules.order" "$r/lib/modules/$kver/"
  depmod -b "$r" "$kver"
  echo "blacklist siw_knobs" >"$r/etc/modprobe.d/lab.conf" # it and siw answer to the same alias
  install -m755 "$here/lab-init" "$cache/rdmacheck" "$r/lab/"
  # For a guest that boots with systemd: nothing starts by itself but what a scenario installs or starts, and lab.service.
  rm -rf "$r"/etc/systemd/system/*.wants "$r"/etc/systemd/user/*.wants
  mkdir -p "$r/etc/systemd/system/multi-user.target.wants" "$r/etc/systemd/system-generators"
  install -m644 "$here/lab.service" "$r/etc/systemd/system/"
  ln -sf ../lab.service "$r/etc/systemd/system/multi-user.target.wants/lab.service"
  ln -sf /lib/systemd/system/multi-user.target "$r/etc/systemd/system/default.target"
  ln -sf /dev/null "$r/etc/systemd/system-generators/systemd-getty-generator"
  : >"$r/etc/machine-id"
  rm -rf "$r/etc/resolv.conf" "$r"/var/cache/apt/*.bin "$r"/var/lib/apt/lists/* "$r"/var/cache/apt/archives/*
  echo lab >"$r/etc/hostname"
  printf '127.0.0.1 localhost lab\n10.0.2.2 host\n' >"$r/etc/hosts"

  say "root disk"
  rm -f "$out/root.ext4"
  truncate -s "${LAB_ROOT_MB:-1536}M" "$out/root.ext4"
  mkfs.ext4 -q -F -L lab -m 0 -O '^has_journal,^metadata_csum' -E lazy_itable_init=1 -d "$r" "$out/root.ext4"

  say "initrd"
  rm -rf "$i" && mkdir -p "$i"/{bin,mod,proc,sys,dev,root}
  cp "$r/bin/busybox" "$i/bin/" && install -m755 "$here/initrd-init" "$i/init"
  # shellcheck disable=SC2086
  closure $bootmods | while read -r p; do
    plain "$p" "$i/mod"
    p=${p##*/} p=${p%.xz} && echo "${p%.zst}" >>"$i/mod/order"
  done
  ( cd "$i" && find . | LC_ALL=C sort | bin/busybox cpio -o -H newc 2>/dev/null | gzip -1 >"$out/initrd.img" )
  cp "$kimg/boot/vmlinuz-$kver" "$out/vmlinuz"
  cp "$kimg/boot/config-$kver" "$out/kernel.config"
  { echo "kernel $kver"; echo "suite $suite"; chroot "$r" dpkg-query -W -f '${Package} ${Version}\n' | sort; } >"$out/manifest.txt"
  rm -rf "$all" "$i"
  done_ "image-$variant" "$key"
}

host_tools
kernel
siw
userland
programs
image
say "ready in $cache: kernel $kver, root disk $(du -h "$out/root.ext4" | cut -f1)"
