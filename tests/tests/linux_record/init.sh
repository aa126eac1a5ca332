dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null &
calls &
echo workload running
while :; do sleep 100000; done
