# Linux's SRP initiator and target, for scenarios:  . /lab/files/srp-lib.sh  (Prepare: giveSRP). The RDMA device is rdma0.

# srp_up [PARAM=VALUE...]: the initiator's module, and its control file for rdma0
srp_up() {
  modprobe -a sd_mod sg scsi_transport_srp && modprobe ib_srp "$@" || return
  control=/sys/class/infiniband_srp/srp-rdma0-1
  waitfor 10 test -e $control/add_target
}

# srp_login IDENTIFIER ADDRESS PORT [KEY=VALUE...]: logs in to the target port of these 32 hexadecimal digits and prints the
# SCSI host. The kernel answers when all channels are there. A port that is logged in to already needs "allow_duplicate" beside.
srp_login() {
  local id=$1 to=$2:$3 more='' kv before host
  shift 3
  for kv in "$@"; do more=$more,$kv; done
  before=$(srp_hosts)
  echo "id_ext=${id:0:16},ioc_guid=${id:16:16},dest=$to$more" >$control/add_target || return
  for host in $(srp_hosts); do
    grep -qw "$host" <<<"$before" || { echo "$host"; return; }
  done
  echo "no host of SRP for $id" >&2
  return 1
}
srp_hosts() {
  local h
  for h in /sys/class/scsi_host/host*; do
    [ ! -e "$h/ioc_guid" ] || echo "${h##*/}"
  done
}

# srp_disk HOST [LUN]: the disk of that unit, waiting for it
srp_disk() {
  local i d
  for ((i = 0; i < 300; i++)); do
    for d in /sys/class/scsi_host/"$1"/device/target*/*:"${2:-0}"/block/*; do
      [ -b "/dev/${d##*/}" ] && echo "/dev/${d##*/}" && return
    done
    sleep 0.1
  done
  echo "no disk of $1 lun ${2:-0}" >&2
  return 1
}

# The remote port of a host: running, blocked, fail-fast or lost. "off" for a time in srp_times is never.
srp_rport() { echo /sys/class/srp_remote_ports/port-"${1#host}":1; }
srp_state() { cat "$(srp_rport "$1")/state"; }
srp_is() { [ "$(srp_state "$1")" = "$2" ]; }
srp_times() { # srp_times HOST RECONNECT_S FAST_IO_FAIL_S DEV_LOSS_S
  local p
  p=$(srp_rport "$1")
  echo "$4" >"$p/dev_loss_tmo" && echo "$3" >"$p/fast_io_fail_tmo" && echo "$2" >"$p/reconnect_delay"
}
srp_logout() {
  echo 1 >"$(srp_rport "$1")/delete" || return
  gone() { [ ! -e "/sys/class/scsi_host/$1" ]; }
  waitfor 60 gone "$1"
}

# srpt_up ADDRESS PORT MIB: a RAM disk as LUN 0 of ib_srpt, for whoever comes from this guest. It sets srpt_id.
srpt_up() {
  local c=/sys/kernel/config/target guid gid rd t acl
  modprobe -a target_core_mod ib_srpt || return
  mkdir -p /etc/target $c/srpt && rd=$c/core/rd_mcp_0/rd
  [ -d $rd ] || { mkdir -p $rd && echo rd_pages=$(($3 * 256)) >$rd/control && echo 1 >$rd/enable; } || return
  echo "$2" >$c/srpt/discovery_auth/rdma_cm_port || return
  guid=$(tr -d : </sys/class/infiniband/rdma0/node_guid) gid=$(tr -d : </sys/class/infiniband/rdma0/ports/1/gids/0)
  t=$c/srpt/0x$gid/0x$gid
  mkdir "${t%/*}" && mkdir "$t" "$t/lun/lun_0" && ln -s $rd "$t/lun/lun_0/rd" || return
  # Kernels differ in what they take for the initiator's name: its address, its port identifier, the adapter's GUID
  for acl in "$1" "0x0000000000000000$guid" "$guid"; do
    mkdir "$t/acls/$acl" 2>/dev/null || continue
    mkdir "$t/acls/$acl/lun_0" && ln -s "$t/lun/lun_0" "$t/acls/$acl/lun_0/lun_0" || return
  done
  echo 1 >"$t/enable" || return
  srpt_id=$guid$guid
}

# ---- our target: it listens for SRP at port 5555 as port group 2

# configure_srp MIB [LINE...]: configure of verbs-lib.sh and SRP; LINEs are put behind
configure_srp() {
  configure $ip "$1" && shift || return
  printf '%s\n' 'srp: [{address: "10.0.2.15:5555", group: 2}]' "$@" >>/tmp/sluiced.yaml
}

# srp_daemon_up: daemon_up, which serves SRP too
srp_daemon_up() {
  daemon_serves() { rdma_listening 3260 && rdma_listening 5555; }
  daemon_up
}

# srp_ours [TARGET]: the line that the operator is told to write to add_target
srp_ours() { admin target srp "${1:-$TARGET}"; }

# srp_ours_login TARGET [KEY=VALUE...]: writes it, and prints the SCSI host
srp_ours_login() {
  local line id
  line=$(srp_ours "$1") || return
  shift
  id=$(sed -E 's/.*id_ext=([0-9a-f]{16}),ioc_guid=([0-9a-f]{16}),.*/\1\2/' <<<"$line")
  srp_login "$id" $ip 5555 "$@"
}
