# Only what takes a millisecond or more: the console takes long for each byte.
dmesg -s 4000000 | grep -e 'initcall .* returned .* after [0-9]\{4,\} usecs' -e 'Switched to clocksource'
# Some code of init's own, that ticks find it.
count=0
while [ $count -lt 10000 ]; do count=$((count + 1)); done
echo workload running
while :; do sleep 100000; done
