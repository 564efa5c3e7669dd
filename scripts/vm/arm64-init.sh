#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first program of a guest of arm64, from the image that scripts/vm/arm64.py makes: gives the
# userland a layer that can be written, and runs tests/vm/guest.sh in it.
/bin/busybox --install -s /bin
export PATH=/bin
. /settings
mkdir /proc /sys /dev /host /over /new
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
share=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "ro,cache=loose,$share" cached /host
mount -t tmpfs -o mode=755,size=75% tmpfs /over
mkdir /over/upper /over/work
mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work overlay /new
for folder in proc sys dev; do mount --move /$folder /new/$folder; done
mkdir -p /new/dev/pts /new/dev/shm "/new$results"
ln -s /proc/self/fd /new/dev/fd
mount -t devpts pts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t tmpfs run /new/run
mount -t debugfs debug /new/sys/kernel/debug
mount -t tracefs trace /new/sys/kernel/tracing
mount -t cgroup2 cgroup /new/sys/fs/cgroup
mount -t 9p -o "$share" results "/new$results"
# The kernel starts this one, from here.
mkdir /sbin
printf '#!/bin/sh\nexec chroot /new /sbin/modprobe "$@"\n' >/sbin/modprobe
chmod 755 /sbin/modprobe
# The repository's environment has packages of another machine. tcpkmon itself is not one of them.
tree=/new$root
site=$tree/.venv/lib/python$python/site-packages
cp -r "$tree"/.venv/lib/python3*/site-packages/*tcpkmon* /new/opt/site
mkdir -p "$site"
mount --bind /new/opt/site "$site"
cp "/new$results/_drain.so" "$tree/collector/ring"
cp "/new$results/_lines.so" "$tree/formats/lines"
# In place of a compiler: the host has compiled the test link (collector/lab/link.py).
cat >/new/usr/bin/cc <<END
#!/bin/sh
case " \$* " in */collector/lab/link.c\ *) cp "$results/link" "\$4" ;; *) exit 1 ;; esac
END
chmod 755 /new/usr/bin/cc
TCPKMON_STAGE=chroot chroot /new /bin/bash "$root/tests/vm/guest.sh" "$root" "$results" \
    >>"/new$results/guest.log" 2>&1
poweroff -f
