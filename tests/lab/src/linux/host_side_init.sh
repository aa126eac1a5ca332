# First process of the profiled guest: runs the workload, then prints its own `ps` without the kernel's threads.
export PATH=/bin
mount -t devtmpfs none /dev
mount -t proc none /proc
busy_loop &
part_time &
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null &
sleep 100000 &
usleep 300000
echo processes:
ps -o pid,ppid,comm | awk '$2 != 2'
echo workload running
while :; do sleep 100000; done
