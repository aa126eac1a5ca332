# Only what takes two milliseconds or more, and no more of a line than is needed: the console takes a millisecond for each byte.
dmesg -s 4000000 | sed -n -e 's/.*initcall \(.*\)+.* returned .* after \([2-9][0-9]\{3\}\|[0-9]\{5,\}\) usecs/initcall \1 \2/p' \
    -e 's/.*\(Switched to clocksource\).*/\1/p'
# Some code of init's own, that ticks find it.
count=0
while [ $count -lt 10000 ]; do count=$((count + 1)); done
echo workload running
while :; do sleep 100000; done
