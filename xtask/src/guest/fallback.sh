#!/bin/bash
# Makes every state of a machine in which RDMA cannot be used, and checks that the program starts and names the reason.
# The doctor must give the same sentence wherever the probe takes no arguments, and a call over a channel must succeed
# in each of these states, by RDMA or with that reason. Ends with a table of the first calls.
# Runs in the guest, whose file system forgets the changes. Usage: fallback.sh PROBE BYWAY FIRST_CALL
probe=$1 byway=$2 first_call=$3
passed=0 cases=0
libraries=/usr/lib/x86_64-linux-gnu
mkdir -p /tmp/aside

# NAME, TEXT THAT THE ANSWER MUST CONTAIN, COMMAND ...
expect() {
  local name=$1 text=$2 answer status
  shift 2
  answer=$("$@" 2>/tmp/stderr)
  status=$?
  cases=$((cases + 1))
  if [ $status = 0 ] && [[ $answer == *"$text"* ]]; then
    passed=$((passed + 1))
    printf '%-20s %s\n' "$name" "$answer"
  else
    printf '%-20s FAILED, status %s: %s\n' "$name" "$status" "$answer"
    sed 's/^/    /' /tmp/stderr
  fi
  if [[ ${*: -1} == *"$probe" ]]; then
    diagnose "$name" "$answer" "$@"
    call "$name" "$answer" "$@"
  fi
}

# NAME, ANSWER OF THE PROBE, COMMAND THAT RUNS THE PROBE ...
call() {
  local name=$1 answer=$2 told path reason took plain
  shift 2
  told=$("${@/$probe/$first_call}" 2>/tmp/stderr)
  IFS='|' read -r path reason took plain <<< "$told"
  cases=$((cases + 1))
  if [[ $answer == 'RDMA on'* && $path == 'rdma ' ]] ||
    [[ $answer == 'no RDMA: '* && $path == 'tcp ' && $reason == *"this side does not use RDMA: ${answer#no RDMA: } " ]]; then
    passed=$((passed + 1))
    printf '%-20s %-5s %9s %9s %s\n' "$name" "$path" "$took" "$plain" "$reason" >> /tmp/calls
  else
    printf '%-20s the call FAILED: %s\n' "$name" "$told"
    sed 's/^/    /' /tmp/stderr
  fi
}

# NAME, SENTENCE THAT THE DOCTOR MUST END WITH, COMMAND THAT RUNS THE PROBE ...
diagnose() {
  local name=$1 sentence=$2 told status expected=1
  shift 2
  told=$("${@/$probe/$doctor}" 2>/tmp/stderr)
  status=$?
  [[ $sentence == 'RDMA on'* ]] && expected=0
  cases=$((cases + 1))
  if [ $status = $expected ] && [[ ${told##*$'\n'} == *"RDMA "*"$sentence" ]]; then
    passed=$((passed + 1))
    # What it would have mended, but for the conclusion.
    awk '/^fail/ && $2 != "RDMA" { print "    " $0; said = 1; next } said && /^ +->/ { print "    " $0 } { said = 0 }' \
      <<< "$told"
  else
    printf '%-20s the doctor FAILED, status %s:\n%s\n' "$name" "$status" "$told"
    sed 's/^/    /' /tmp/stderr
  fi
}

aside() { mv "$@" /tmp/aside/; }

# The binaries must be reachable for a user without rights.
cp "$probe" /tmp/probe
cp "$byway" /tmp/byway
cp "$first_call" /tmp/first_call
printf '#!/bin/bash\nexec /tmp/byway doctor "$@"\n' > /tmp/doctor
chmod 755 /tmp/probe /tmp/byway /tmp/doctor /tmp/first_call
probe=/tmp/probe doctor=/tmp/doctor first_call=/tmp/first_call

/tmp/byway doctor || exit 1

expect 'all is well' 'RDMA on rxe0 port 1' $probe
expect 'no such device' 'no RDMA device named mlx5_9; there is rxe0' $probe mlx5_9

expect 'own address' "the connection's own address 10.99.0.1" $probe --local 10.99.0.1
ip addr add 198.51.100.1/32 dev lo
expect 'another network' 'no device is on the network of 198.51.100.1' $probe --local 198.51.100.1
expect 'device by variable' 'asked for by BYWAY_RDMA_DEVICE' env BYWAY_RDMA_DEVICE=rxe0:1 $probe
expect 'address by variable' 'asked for by BYWAY_RDMA_GID_INDEX' env BYWAY_RDMA_GID_INDEX=1 $probe
expect 'no such variable' 'named mlx5_9, which BYWAY_RDMA_DEVICE asks for' env BYWAY_RDMA_DEVICE=mlx5_9 $probe
expect 'no such port' 'no port 2, which BYWAY_RDMA_DEVICE asks for' env BYWAY_RDMA_DEVICE=rxe0:2 $probe
expect 'no such address' 'no address 200, which BYWAY_RDMA_GID_INDEX asks for' env BYWAY_RDMA_GID_INDEX=200 $probe
expect 'bad variable' 'BYWAY_RDMA_GID_INDEX is "x", not a number' env BYWAY_RDMA_GID_INDEX=x $probe

aside $libraries/libibverbs.so.1*
expect 'library removed' 'libibverbs.so.1 cannot be loaded' $probe
mv /tmp/aside/libibverbs.so.1* $libraries/

aside $libraries/libibverbs /etc/libibverbs.d
expect 'providers removed' 'no provider for rxe0: install the providers' $probe
mv /tmp/aside/libibverbs $libraries/
mv /tmp/aside/libibverbs.d /etc/

: > /tmp/empty.so
aside $libraries/libibverbs.so.1*
cp /tmp/empty.so $libraries/libibverbs.so.1
expect 'library broken' 'libibverbs.so.1 cannot be loaded' $probe
rm $libraries/libibverbs.so.1
mv /tmp/aside/libibverbs.so.1* $libraries/

expect 'memory lock 64 KiB' 'may lock only 64 KiB' bash -c \
  "ulimit -l 64; exec setpriv --reuid 1000 --regid 1000 --clear-groups $probe"
expect 'a normal user' 'RDMA on rxe0 port 1' setpriv --reuid 1000 --regid 1000 --clear-groups $probe

ip link set rdma0 down
expect 'port down' 'no port of rxe0 is active, the last one is down' $probe
ip link set rdma0 up
expect 'port up again' 'RDMA on rxe0 port 1' $probe

# The kernel always gives a Soft-RoCE port one address, also without an IP address. So the library is made to report
# an empty table, as it does in a container whose network has no RDMA: the function returns zero at once.
library=$(readlink -f $libraries/libibverbs.so.1)
cp "$library" /tmp/aside/whole
offset=$((0x$(readelf -sW "$library" | awk '$8 ~ /^_ibv_query_gid_table@/ { print $2; exit }')))
printf '\x31\xc0\xc3' | dd of="$library" bs=1 seek=$offset conv=notrunc status=none
expect 'no GID' 'port 1 of rxe0 has no address' $probe
cp /tmp/aside/whole "$library"
expect 'GID again' 'RDMA on rxe0 port 1' $probe

rdma link delete rxe0
expect 'no device' 'there is no RDMA device' $probe
rdma link add rxe0 type rxe netdev rdma0
expect 'device again' 'RDMA on rxe0 port 1' $probe

rdma link delete rxe0
# In whatever order they depend on each other.
for round in 1 2 3 4; do
  awk '/^(rdma|ib|iw)_/ { print $1 }' /proc/modules | xargs -r -n 1 rmmod 2>/dev/null
done
expect 'no RDMA in kernel' 'the kernel has no RDMA support' $probe
for module in /run/modules/*.ko; do insmod $module 2>/dev/null; done
rdma link add rxe0 type rxe netdev rdma0
expect 'RDMA in kernel' 'RDMA on rxe0 port 1' $probe

# NAME, STATUS, TEXT THAT THE DOCTOR MUST GIVE ABOUT A PEER, VARIABLE OF THE PEER'S ENVIRONMENT ...
peer() {
  local name=$1 expected=$2 text=$3 told status server
  shift 3
  env "$@" $first_call serve 10.99.0.1:7000 &
  server=$!
  until ss -Hltn 'sport = :7000' | grep -q .; do :; done
  told=$(/tmp/byway doctor 10.99.0.1:7000 2>&1)
  status=$?
  kill $server
  wait $server 2>/dev/null
  cases=$((cases + 1))
  if [ $status = $expected ] && [[ $told == *"$text"* ]]; then
    passed=$((passed + 1))
    printf '%-20s %s\n' "$name" "$(grep '^[a-z]* *peer' <<< "$told" | sed 's/^/\n    /')"
  else
    printf '%-20s FAILED, status %s:\n%s\n' "$name" "$status" "$told"
  fi
}

peer 'peer with RDMA' 0 'calls go by rdma (rxe0 port 1): '
peer 'peer without' 1 "calls go by tcp: the server does not use RDMA: the server's environment has BYWAY_TRANSPORT=tcp" \
  BYWAY_TRANSPORT=tcp

echo "fallback: a channel's first call in each state"
printf '%-20s %-5s %9s %9s  %s\n' state path first plain 'device, or why it is not RDMA'
cat /tmp/calls
echo "fallback: $passed of $cases cases"
[ $passed = $cases ]
