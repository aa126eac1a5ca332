# Two threads fight for a spin lock, until a line comes.
/bin/spin_lock &
echo fight running
read -r _
kill $!
# Two processes write to one file: one of them has its lock, the other one waits for it in a loop, for the owner is running.
while :; do dd if=/dev/zero of=/shared bs=1M count=16 conv=notrunc 2>/dev/null; done &
while :; do dd if=/dev/zero of=/shared bs=1M count=16 conv=notrunc 2>/dev/null; done &
# What is written to the serial port is so with interrupts off: the log's errors are.
echo 4 >/proc/sys/kernel/printk
(
    exec 3>/dev/kmsg
    while :; do
        echo '<3>a line of the log that keeps the interrupts off for a while' >&3
        usleep 200000
    done
) &
echo workload running
while :; do sleep 100000; done
