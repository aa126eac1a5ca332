mkdir -p /tmp
export HOME=/tmp
# The same for perf and for who looks from outside: one process that is in the kernel nearly all of the time.
dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null &
# There is no PMU here: the clock is the kernel's own timer.
perf record -a -g -m 16 -e cpu-clock -c 10000000 --no-buildid -o /tmp/perf.data -- sh -c '
    echo perf begins
    read -r word
    # It has lost what this host had no time for: enough is some 400 samples with their stacks, of 200 bytes at least.
    until [ $(stat -c %s /tmp/perf.data) -gt 100000 ]; do sleep 1; done
    echo perf ends
' 2>&1
kill $!
echo perf stacks
# The kernel's part of each stack, innermost first, behind the number of samples that have it.
perf script -i /tmp/perf.data --comm dd -F ip,sym 2>/dev/null | awk '
    $1 ~ /^ffff/ { stack = stack " " $2 }
    NF == 0 && stack { samples[stack]++; stack = "" }
    END { for (stack in samples) print samples[stack] stack }'
echo perf reported
while :; do sleep 100000; done
