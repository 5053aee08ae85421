# What becomes of an attachment, row by row of docs/attach.md: test/suite/attachments itself, with a face that only a kernel with its
# driver has. $1 is the face, $2 what of the test is run.
. /lab/lib.sh
modprobe -a ublk_drv loop || fail "drivers"
modprobe nbd nbds_max=32 || fail "nbd"
export SLUICE_ATTACHMENTS_FACES=$1 SLUICE_ATTACHMENTS_BIN=/lab/files TMPDIR=/tmp
mkdir -p /tmp/here && cd /tmp/here || fail "a directory"
must "every row for $1" /lab/files/attachments.test -test.v -test.parallel 3 -test.timeout 60m -test.run "$2"
[ -z "$(ls /sys/class/ublk-char 2>/dev/null)" ] || fail "left: $(ls /sys/class/ublk-char)"
[ -z "$(cat /sys/block/nbd*/pid 2>/dev/null)" ] || fail "an nbd device is left"
