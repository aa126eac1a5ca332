dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null &
calls &
plain &
shared &
threads &
twisted &
shares & shares=$!
# A process that executes another file after a while.
(
    turn=0
    while [ $turn -lt 20000 ]; do turn=$((turn + 1)); done
    echo another file is executed
    exec after
) &
echo workload running
read -r word
kill $shares
wait $shares
echo counted
while :; do sleep 100000; done
