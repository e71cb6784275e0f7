#!/bin/bash
# The verbs layer beside perftest, in one guest: same sizes, both ends polling, turn by turn, medians of five.
# Usage: bench.sh PERF
perf=$1
address=10.99.0.1
size_lat=64 count_lat=3000 size_bw=65536 count_bw=2000
rounds=5

# Starts a server, waits until it listens, and runs the client: PORT, SERVER, CLIENT.
both() {
  $2 >/dev/null 2>&1 &
  until ss -Hltn "sport = :$1" | grep -q .; do :; done
  $3 2>/tmp/stderr || cat /tmp/stderr
  wait
}

# FILE: the middle one of its numbers.
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

cd /tmp || exit 1
cp "$perf" /tmp/perf
for ((round = 1; round <= rounds; round++)); do
  lat="ib_send_lat -d rxe0 -x 1 -F -s $size_lat -n $count_lat"
  both 18515 "$lat" "$lat $address" | awk -v s=$size_lat '$1 == s { print $5 }' >> lat.perftest
  both 18600 '/tmp/perf serve' "/tmp/perf send_lat $address $size_lat $count_lat" | awk '{ print $3 }' >> lat.ours
  bw="ib_write_bw -d rxe0 -x 1 -F -s $size_bw -n $count_bw"
  both 18515 "$bw" "$bw $address" | awk -v s=$size_bw '$1 == s { print $4 }' >> bw.perftest
  both 18600 '/tmp/perf serve' "/tmp/perf write_bw $address $size_bw $count_bw" | awk '{ print $3 }' >> bw.ours
done
echo "half round trip, $size_lat B, µs:  perftest" $(cat lat.perftest) ' ours' $(cat lat.ours)
echo "write bandwidth, $size_bw B, MiB/s:  perftest" $(cat bw.perftest) ' ours' $(cat bw.ours)
awk -v lp="$(median lat.perftest)" -v lo="$(median lat.ours)" -v bp="$(median bw.perftest)" -v bo="$(median bw.ours)" '
  BEGIN {
    printf "latency    perftest %8.2f  ours %8.2f  ours/perftest %.2f\n", lp, lo, lo / lp
    printf "bandwidth  perftest %8.2f  ours %8.2f  ours/perftest %.2f\n", bp, bo, bo / bp
    exit !(lo <= lp * 1.15 && bo >= bp / 1.15)
  }' && echo 'within 15 % of perftest' || { echo 'NOT within 15 % of perftest'; exit 1; }
