# sg3-utils, one tool after the other, on two units of a file: what its manual says it does, it does.
#   sg3.sh iser|tcp
. /lab/lib.sh
[ "$1" = tcp ] || must "siw on eth0" rdma_up siw eth0
must "iscsid" iscsid_up
must "login" iscsi_login "$1" "$TARGET" "10.0.2.2:$PORT"
a=$(disk "$TARGET" 0) && b=$(disk "$TARGET" 1) || fail "no disks"

# try: a step whose failure is kept for the end, so that one run tells of all
bad=
try() { step "$@" || bad+="$1; "; }
# says PATTERN CMD...: the command succeeds and prints that
says() {
  local want=$1 rc
  shift
  timeout 60 "$@" >/tmp/says 2>&1
  rc=$?
  [ $rc = 0 ] && grep -Eiq -- "$want" /tmp/says && return
  echo "status $rc, wanted /$want/ of: $*"
  cat /tmp/says
  return 1
}
# ends STATUS CMD...: sg3-utils tell the sense by their exit status (sg3_utils(8))
ends() {
  local want=$1 rc
  shift
  timeout 60 "$@" >/tmp/ends 2>&1
  rc=$?
  [ $rc = "$want" ] && return
  echo "status $rc, wanted $want of: $*"
  cat /tmp/ends
  return 1
}
# same DEV BLOCK FILE: the device's blocks from there on are that file
same() { dd if="$1" bs=512 skip="$2" count=$(($(stat -c %s "$3") / 512)) iflag=direct status=none | cmp - "$3"; }
pattern() { head -c $(($2 * 512)) /dev/urandom >"$1"; }
put() { dd if="$3" of="$1" bs=512 seek="$2" oflag=direct status=none; }
zeros() { head -c $(($2 * 512)) /dev/zero >"$1"; }

xcopy_case() {
  local sa sb # sg_xcopy knows block devices by names that only udev makes
  sa=/dev/$(ls "/sys/block/${a##*/}/device/scsi_generic") && sb=/dev/$(ls "/sys/block/${b##*/}/device/scsi_generic") || return
  pattern /tmp/p256 256
  put "$a" 4096 /tmp/p256 && ends 0 sg_xcopy if="$sa" of="$sb" skip=4096 seek=512 count=256 bs=512 && same "$b" 512 /tmp/p256
}

# ---- who is there
try "sg_inq" says 'Peripheral device type: disk' sg_inq "$a"
try "sg_vpd: which pages" says '0xb2|Logical block provisioning' sg_vpd -p sv "$a"
for p in 0x80 0x83 0x86 0x87 0x88 0x8f 0xb0 0xb1 0xb2; do try "sg_vpd -p $p" ends 0 sg_vpd -p $p "$a"; done
try "sg_vpd: B0 tells of COMPARE AND WRITE" says 'Maximum compare and write length: [1-9]' sg_vpd -p bl "$a"
try "sg_luns" says '2 lun|Lun list length = 16' sg_luns "$a"
try "sg_turs" ends 0 sg_turs "$a"
try "sg_readcap" says 'lbpme=1' sg_readcap --16 "$a"
try "sg_modes" says 'Caching' sg_modes -a "$a"
try "sg_requests" ends 0 sg_requests "$a"
try "sg_opcodes" says 'Compare and write' sg_opcodes "$a"
try "sg_opcodes: one, with timeouts" says 'timeout' sg_opcodes --opcode=0x89 --rctd "$a"
try "sg_opcodes: task management" says 'LURS|Logical unit reset' sg_opcodes --tmf "$a"
for p in 0 2 3 5 0xc 0xd 0x2f; do
  try "sg_logs names page $p" says "$(printf '0x%02x' $((p)))" sg_logs -p 0 "$a"
  try "sg_logs -p $p" ends 0 sg_logs -p "$p" "$a"
done
try "sg_logs: pages" says '0x0c|Logical block provisioning' sg_logs -p 0 "$a"
try "sg_rtpg" says 'active/optimized' sg_rtpg --decode "$a"
try "sg_timestamp" ends 0 sg_timestamp "$a"

# ---- reservations, SPC-4 5.12
try "sg_persist: capabilities" says 'Write Exclusive, All Registrants: 1' sg_persist --in --report-capabilities "$a"
try "sg_persist: register" ends 0 sg_persist --out --register --param-sark=0xabc "$a"
try "sg_persist: keys" says '0xabc' sg_persist --in --read-keys "$a"
try "sg_persist: reserve" ends 0 sg_persist --out --reserve --param-rk=0xabc --prout-type=5 "$a"
try "sg_persist: reservation" says 'Write Exclusive, registrants only' sg_persist --in --read-reservation "$a"
try "sg_persist: full status" says 'iqn.2024-01.lab:guest' sg_persist --in --read-full-status "$a"
try "sg_persist: a wrong key conflicts" ends 24 sg_persist --out --release --param-rk=0xdef --prout-type=5 "$a"
try "sg_persist: release" ends 0 sg_persist --out --release --param-rk=0xabc --prout-type=5 "$a"
try "sg_persist: clear" ends 0 sg_persist --out --clear --param-rk=0xabc "$a"
try "sg_persist: no keys left" says 'no registered' sg_persist --in --read-keys "$a"

# ---- blocks
pattern /tmp/one 1 && pattern /tmp/two 1 && cat /tmp/one /tmp/two >/tmp/caw
try "fill" put "$a" 8 /tmp/one
try "sg_compare_and_write" ends 0 sg_compare_and_write --in=/tmp/caw --lba=8 --num=1 --xferlen=1024 "$a"
try "  it wrote" same "$a" 8 /tmp/two
try "  and miscompares the second time" ends 14 sg_compare_and_write --in=/tmp/caw --lba=8 --num=1 --xferlen=1024 "$a"
try "  which changes nothing" same "$a" 8 /tmp/two
for n in 10 16; do
  pattern /tmp/ws 1 && for _ in 1 2 3 4; do cat /tmp/ws; done >/tmp/ws4
  try "sg_write_same --$n" ends 0 sg_write_same --$n --in=/tmp/ws --lba=64 --num=4 "$a"
  try "  it wrote" same "$a" 64 /tmp/ws4
done
if [ "$1" = tcp ]; then # CDBs of 32 bytes travel in an AHS
  pattern /tmp/ws 1 && for _ in 1 2 3 4; do cat /tmp/ws; done >/tmp/ws4
  try "sg_write_same --32" ends 0 sg_write_same --32 --in=/tmp/ws --lba=64 --num=4 "$a"
  try "  it wrote" same "$a" 64 /tmp/ws4
fi
zeros /tmp/z8 8
try "sg_write_same --unmap" ends 0 sg_write_same --16 --unmap --lba=64 --num=8 "$a"
try "  it reads zero" same "$a" 64 /tmp/z8
try "sg_write_same --ndob" ends 0 sg_write_same --16 --ndob --lba=128 --num=8 "$a"
try "  it reads zero" same "$a" 128 /tmp/z8
pattern /tmp/p2048 2048
try "fill" put "$a" 2048 /tmp/p2048
try "sg_get_lba_status: mapped" says 'mapped' sg_get_lba_status --lba=2048 "$a"
try "sg_unmap" ends 0 sg_unmap --force --lba=2048 --num=2048 "$a"
zeros /tmp/z2048 2048
try "  it reads zero" same "$a" 2048 /tmp/z2048
try "sg_get_lba_status: deallocated" says 'unmapped|deallocated|anchored' sg_get_lba_status --lba=2048 "$a"
try "sg_verify" ends 0 sg_verify --lba=8 --count=8 "$a"
try "sg_verify: with data" ends 0 sg_verify --lba=8 --count=1 --ebytchk=1 --ndo=512 --in=/tmp/two "$a"
try "sg_verify: data that differs" ends 14 sg_verify --lba=8 --count=1 --ebytchk=1 --ndo=512 --in=/tmp/one "$a"
try "sg_write_verify" ends 0 sg_write_verify --16 --lba=16 --num=1 --in=/tmp/one --ilen=512 "$a"
try "  it wrote" same "$a" 16 /tmp/one
try "sg_sync" ends 0 sg_sync "$a"
try "sg_prevent: the unit is not removable" ends 9 sg_prevent "$a"
try "sg_xcopy: two units, one target" xcopy_case
try "beyond the end" ends 22 sg_verify --lba=0x7fffffff --count=1 "$a"

# ---- resets: the answer is a unit attention and a unit that goes on
for how in --device --target; do
  try "sg_reset $how" ends 0 sg_reset $how "$a"
  try "  the unit is there" waitfor 60 sg_turs "$a"
  try "  with its data" same "$a" 8 /tmp/two
done
must "logout" iscsi_logout "$TARGET"
[ -z "$bad" ] || fail "$bad"
