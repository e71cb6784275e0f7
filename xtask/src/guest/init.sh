#!/bin/busybox sh
# First process of the guest. Loads the modules, lays the packages and a RAM disk over the host's file system,
# and hands over to the job's script there.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
  insmod "$module" || echo "guest: $module could not be loaded"
done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 packages /packages
mount -t tmpfs -o size=90% tmpfs /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/packages:/host,upperdir=/rw/upper,workdir=/rw/work overlay /new
mkdir -p /new/proc /new/sys /new/dev /new/run
mount --move /proc /new/proc
mount --move /sys /new/sys
mount --move /dev /new/dev
mkdir -p /new/dev/shm /new/dev/pts
mount -t tmpfs tmpfs /new/dev/shm
mount -t tmpfs tmpfs /new/run
mkdir /new/run/guest
# For whoever unloads some.
cp -r /modules /new/run/modules
mount -t 9p -o trans=virtio,version=9p2000.L,rw,msize=262144 job /new/run/guest
exec switch_root /new /bin/bash /run/guest/script
