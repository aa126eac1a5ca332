# Uses most of the time, and makes no exit.
dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null &
# Writes to the kernel's log, which goes to the serial port there and then.
(
    exec 3>/dev/kmsg
    while :; do echo '<3>a line of the log' >&3; done
) &
echo workload running
while :; do sleep 100000; done
