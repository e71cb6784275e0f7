# Second stage: sets the device up, then runs the command that is appended below.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# The second serial line carries the command's output; the first one has the kernel's messages.
stty -F /dev/ttyS1 -opost 2>/dev/null
exec >/dev/ttyS1 2>&1 </dev/null
HOST=$(sed 's/.*guest=\([0-9]*\).*/\1/' /proc/cmdline)
export HOST OUT=/run/guest/out
ulimit -l unlimited
chmod 1777 /tmp /dev/shm
ip link set lo up
if [ "$GUEST_DEVICE" = 1 ]; then
  if ip link show eth0 >/dev/null 2>&1; then
    ip link set eth0 down
    ip link set eth0 name rdma0
  else
    ip link add rdma0 type dummy
  fi
  ip link set rdma0 mtu 4200 up
  ip addr add "10.99.0.$HOST/24" dev rdma0
  [ -z "$GUEST_NETEM" ] || tc qdisc add dev rdma0 root netem $GUEST_NETEM
  rdma link add rxe0 type rxe netdev rdma0
fi
