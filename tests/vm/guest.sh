#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside a guest that scripts/vmtest booted: makes a writable copy of the host's files and runs
# pytest in it. Only what goes into RESULTS outlives the guest.
#
#   guest.sh ROOT RESULTS       RESULTS/arguments: pytest's arguments, one a line
#                               RESULTS/module: a module of Python to run in place of pytest
#
# The guests of arm64 come here behind the first part: scripts/vm/arm64-init.sh has done it.
# The host's files are mounted twice: as the root that virtme-ng made, and under the tag `cached`,
# with a cache, which makes imports of Python ten times as fast. The overlay uses the second.
set -u
root=$1 results=$2
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [ "${TCPKMON_STAGE:-}" != chroot ]; then
    exec >>"$results/guest.log" 2>&1
    base=/run/tcpkmon-vm
    mkdir -p $base/host $base/over
    mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 cached $base/host &&
        mount -t tmpfs -o mode=755,size=75% tmpfs $base/over &&
        mkdir -p $base/over/upper $base/over/work $base/over/root &&
        mount -t overlay -o "lowerdir=$base/host,upperdir=$base/over/upper,workdir=$base/over/work" \
            overlay $base/over/root &&
        cd $base/over/root || exit 90
    for folder in proc sys dev; do mount --rbind /$folder $folder || exit 91; done
    mount -t tmpfs tmpfs run || exit 92
    # Where the unpacked kernel's modules are, as virtme-ng linked them.
    modules=$(readlink -f "/lib/modules/$(uname -r)")
    mkdir -p usr/lib/modules && mount -t tmpfs tmpfs usr/lib/modules &&
        ln -s "$modules" "usr/lib/modules/$(uname -r)"
    mkdir -p ".$results" && mount --bind "$results" ".$results" || exit 93
    TCPKMON_STAGE=chroot exec chroot . bash "$root/tests/vm/guest.sh" "$@"
fi
unset TCPKMON_STAGE
ip link set lo up
mapfile -t arguments <"$results/arguments"
export HOME=/root LC_ALL=C.UTF-8 TMPDIR=/run/tmp
export TCPKMON_GUEST=1 TCPKMON_LIVE=1 TCPKMON_RESULTS=$results
mkdir -p $TMPDIR && cd "$root" || exit 94
# See compile_far.py.
far=/run/tcpkmon-vm
mkdir -p $far/compile && mount --bind "$results/compile" $far/compile &&
    cp collector/loader/bcc_child.py $far/compile_child.py &&
    mount --bind tests/vm/compile_far.py collector/loader/bcc_child.py || exit 95
# The guest boots with its second CPU off: one test needs that.
case " ${arguments[*]} " in
    *test_vm_latecpu.py*) export TCPKMON_LATE_CPU=1 ;;
    *) echo 1 >/sys/devices/system/cpu/cpu1/online ;;
esac
# An emulated CPU of another machine beside a busy host: a start of two captures took seven minutes.
limit=420
[ "$(uname -m)" = x86_64 ] || limit=1200
export TCPKMON_GUEST_LIMIT=$limit
"$root/.venv/bin/python" -m pytest -p no:cacheprovider -p tests.vm.reporting \
    -o faulthandler_timeout=0 -o timeout=$limit --tb=short --continue-on-collection-errors \
    "${arguments[@]}" </dev/null
status=$?
dmesg >"$results/dmesg.log" 2>&1
echo "$status" >"$results/exit.new" && mv "$results/exit.new" "$results/exit"
