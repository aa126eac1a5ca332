dmesg -s 4000000 | grep -e 'initcall .* returned' -e 'Switched to clocksource'
# Some code of init's own: on a busy host only few ticks find it.
count=0
while [ $count -lt 100000 ]; do count=$((count + 1)); done
echo workload running
while :; do sleep 100000; done
