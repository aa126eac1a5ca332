# Both vCPUs are busy, in user mode and in the kernel.
one &
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null &
echo workload running
while :; do
    sleep 1
    echo beat
done
