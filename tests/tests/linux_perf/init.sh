mkdir -p /tmp
export HOME=/tmp
# The same for perf and for who looks from outside: one process that is in the kernel nearly all of the time.
dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null &
# There is no PMU here: the clock is the kernel's own timer.
perf record -a -g -e cpu-clock -c 10000000 --no-buildid -o /tmp/perf.data -- sh -c '
    echo perf begins
    sleep 15
    echo perf ends
' 2>&1
kill $!
echo perf report
perf report -i /tmp/perf.data --stdio -g none --children --comm dd -F overhead_children,overhead,sample,sym -t ';' 2>&1
echo perf reported
while :; do sleep 100000; done
